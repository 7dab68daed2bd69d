"""Scores, policies, budgets and readers, and the step that drops KV pairs."""
