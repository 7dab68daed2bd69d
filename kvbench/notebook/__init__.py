"""Eviction on a model in memory, and sweeps as data frames, for notebooks: `kvbench.generate`, `kvbench.run`."""
