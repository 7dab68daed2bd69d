"""InfiniteBench, all twelve tasks: published rows and generated ones."""
