"""Random layers and caches for tests that need no model: those that the properties of scores and policies use."""

from kvbench.extras.conformance.properties.caches import future_queries_of, layer_of, random_cache, random_layer

__all__ = ["future_queries_of", "layer_of", "random_cache", "random_layer"]
