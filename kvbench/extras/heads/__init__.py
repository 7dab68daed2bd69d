"""Measurements of the heads of a model, made once and kept in a file, and the score that ranks pairs by them."""
