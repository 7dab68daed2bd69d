"""Tables as values, and each of their formats once: text, Markdown, LaTeX, HTML, CSV, JSON."""
