"""Scores: how important each KV pair is. The scores of a file share a paper or an idea, which heads them."""
