"""Benchmark tasks: samples as text, and the metric that judges an answer.

Knows nothing about torch, models, caches or configuration.
"""
