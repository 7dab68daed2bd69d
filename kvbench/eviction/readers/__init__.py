"""Readers: which of the KV pairs that eviction kept a query reads while an answer is decoded."""
