"""Weights & Biases: rows are mirrored there, one run per cell."""
