"""LongBench, all 21 tasks in English and Chinese, and the 13 of LongBench-E."""
