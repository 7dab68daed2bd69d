"""Evicted pairs are merged into kept ones."""
