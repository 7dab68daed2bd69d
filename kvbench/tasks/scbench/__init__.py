"""SCBench's nine English tasks and two mixed ones, as KVzip evaluates them."""
