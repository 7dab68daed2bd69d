"""From rows to tables, and tables as text, Markdown, LaTeX and CSV."""
