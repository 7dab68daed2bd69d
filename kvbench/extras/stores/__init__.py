"""Kept pairs in fewer bytes: fewer bits, fewer channels of keys."""
