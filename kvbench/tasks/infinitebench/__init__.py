"""InfiniteBench, all twelve tasks: rows of the benchmark, and those that can be made up without them."""
