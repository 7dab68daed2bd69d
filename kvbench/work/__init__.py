"""Sweeps, for commands and notebooks alike: planned, made, read back."""
