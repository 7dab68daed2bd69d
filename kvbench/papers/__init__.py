"""The papers' tables and figures: run, lay out, compare with the published numbers."""

FORMATS = {"text": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv"}
"""The formats of a page, and how their files end."""
