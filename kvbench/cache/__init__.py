"""KV caches: layers with their keys and values, ragged layouts, attention over them, quantised stores, kernels."""
