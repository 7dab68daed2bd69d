"""Readers: they choose the kept pairs that a token of an answer reads."""
