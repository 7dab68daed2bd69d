"""Claims written down before their rows exist, and their verdicts once the rows are there."""
