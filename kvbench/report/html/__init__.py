"""One self-contained page of a results folder: a table to sort, trade-offs to explore, samples to read."""
