"""Rows to statistics, tables and plots.

Reads rows only: torch, transformers and Hydra are never imported here.
"""
