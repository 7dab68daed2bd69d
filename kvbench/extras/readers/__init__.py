"""What a token of an answer reads of the pairs that are kept."""
