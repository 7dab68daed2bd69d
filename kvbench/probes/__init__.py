"""Scores judged by arrays, not by answers: what is lost when pairs go, computed exactly. One probe a file."""
