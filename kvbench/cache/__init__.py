"""KV tensors: ragged layouts, stores, attention and kernels."""
