"""Extras of kvbench: pages, sharing, merging, stores and readers."""
