"""Tables and figures of papers: what each is made of, and our numbers set beside the published ones."""
