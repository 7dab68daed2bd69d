"""The papers' tables and figures: run, lay out, compare with the published numbers."""

FORMATS = {"text": ".txt", "markdown": ".md", "latex": ".tex", "html": ".html", "csv": ".csv", "json": ".json"}
"""The formats of a page, and how their files end."""
