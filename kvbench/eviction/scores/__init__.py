"""Scores: what a cached pair is worth, one score a file, each headed by its paper and equation."""
