"""What scripts/reference.py does: sweeps of a file, run, packed, checked, and told in pages."""
