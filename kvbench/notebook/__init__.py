"""Methods compared, and eviction, on a model in memory, for notebooks: kvbench.Bench, kvbench.generate, kvbench.run."""
