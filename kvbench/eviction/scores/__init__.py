"""Scores: how important each KV pair is. One score per file, each headed by its paper and equation."""
