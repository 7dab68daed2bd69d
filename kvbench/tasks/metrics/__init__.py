"""Metrics that score answers: one file per benchmark, every function with its formula, aggregation and namesakes."""
