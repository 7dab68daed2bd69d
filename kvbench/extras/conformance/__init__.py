"""Golden cases and properties that every method must satisfy."""
