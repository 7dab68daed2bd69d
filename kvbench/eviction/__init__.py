"""Eviction: budget, schedule, policy, scores, ranking, allocation and the step that drops KV pairs."""
