"""OOLONG: what a long list of short texts adds up to."""
