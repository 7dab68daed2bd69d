"""Whole pages are kept or dropped, as engines allocate them."""
