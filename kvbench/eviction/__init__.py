"""Scores, policies and budgets, and the step that drops KV pairs."""
