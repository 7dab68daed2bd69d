"""Fast twins of what kvbench computes most: one folder an operation, `naive.py` its truth, the others its equals."""
