"""Attention of a few new tokens over segments of different lengths that lie one after the other in memory."""
