"""Products on a CPU whose bits do not depend on what else is computed beside them."""
