"""What a run, a sweep and a page are, for commands and notebooks alike: what is missing is made, rows are read back."""
