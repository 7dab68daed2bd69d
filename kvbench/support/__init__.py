"""Paths, plugins, text and errors; knows nothing of KV caches."""
