"""Commands at a disk that fails at one call: `python -m benchmarks.write_faults`."""
