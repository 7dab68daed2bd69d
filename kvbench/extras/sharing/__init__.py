"""One set of tokens is kept for several heads."""
