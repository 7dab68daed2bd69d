"""Intervals, paired tests and their corrections."""
