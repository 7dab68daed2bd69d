"""Decode batches: many evicted caches of one prompt that answer together."""
