"""Features that the core does without: a folder for each, with its code, settings and tests."""
