"""Items of papers whose numbers are derived: won tasks, relative differences, FLOPs by formulas."""
