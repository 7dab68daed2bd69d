"""Kept pairs are numbered anew by their slots in the cache."""
