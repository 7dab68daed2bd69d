"""RULER v2: numbers of a key among as many others of the same form."""
