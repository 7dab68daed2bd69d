"""Benchmark data: the lock of sources, downloads into `data.root`, and verification.

Knows nothing of tasks except the names of their files. Downloads only on request.
"""
