"""Chunks of tokens, of which the uneven ones give only their best tokens."""
