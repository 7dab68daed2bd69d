"""The papers' tables and figures: run, lay out, compare with the published numbers."""
