"""Items of papers whose numbers are derived: won tasks, means of means, relative differences, FLOPs by formulas."""
