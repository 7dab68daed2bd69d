"""Scores compared by exact eviction error instead of answers."""
