"""Rows and means for other programs."""
