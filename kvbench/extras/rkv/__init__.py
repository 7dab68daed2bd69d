"""R-KV: attention and redundancy of keys, while long answers are written."""
