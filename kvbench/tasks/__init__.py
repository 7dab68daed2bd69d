"""Benchmarks: prompts as text, and their metrics.

Knows nothing of torch, models, caches or configuration.
"""
