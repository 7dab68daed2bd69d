"""Timing of cells instead of judging answers: prefill, eviction, decoding, and the roofline of the device."""
