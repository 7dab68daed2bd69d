"""Rotary position embeddings: frequencies, average rotations, and rotating cached keys to new positions."""
