"""Runs and sweeps, for commands and notebooks alike: what is missing is made, rows are read back."""
