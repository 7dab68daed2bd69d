"""Rows to statistics, tables, plots and pages.

Reads rows only: torch, transformers and Hydra are never imported here.
"""
