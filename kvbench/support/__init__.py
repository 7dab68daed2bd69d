"""Paths, plugins and text: what knows nothing of caches."""
