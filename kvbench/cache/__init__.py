"""KV tensors: ragged layouts, attention and kernels."""
