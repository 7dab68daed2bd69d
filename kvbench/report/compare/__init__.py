"""Paired comparisons of two sides, and the regression gate."""
