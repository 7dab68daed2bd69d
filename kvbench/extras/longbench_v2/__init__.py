"""LongBench v2: questions of four options about long texts, with reasoning or without."""
