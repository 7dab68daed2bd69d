"""Scores, policies, budgets and allocations, and the step that drops KV pairs."""
