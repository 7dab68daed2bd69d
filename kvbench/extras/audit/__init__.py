"""How sure a difference of two printed means is, from the means and the number of prompts alone."""
