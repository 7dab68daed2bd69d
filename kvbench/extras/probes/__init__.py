"""Scores compared by exact eviction error instead of answers."""

DEFAULT = "results/probes"
"""The results folder of probes unless a command names another."""
