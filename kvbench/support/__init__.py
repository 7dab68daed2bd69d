"""Paths, plugins, text and errors; knows nothing of KV caches."""

__version__ = "0.1.0"
