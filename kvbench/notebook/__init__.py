"""Methods compared on a model in memory: kvbench.Bench and the functions beside it."""
