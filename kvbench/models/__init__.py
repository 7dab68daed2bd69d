"""Models: reading prompts and generating answers with a cache that is ours. transformers ends in `bridge.py`."""
