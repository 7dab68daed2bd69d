"""Compactor: leverage of keys and attention that is not causal."""
