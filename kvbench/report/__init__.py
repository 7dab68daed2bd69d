"""Rows to tables. Reads results folders only: neither torch nor transformers nor Hydra is ever imported from here."""
