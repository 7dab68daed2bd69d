"""The fastest products and dtype of a processor, by timing: `model.products=auto`, `model.dtype=auto`."""
