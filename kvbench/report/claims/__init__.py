"""Claims that are written down before their rows exist, and what the rows then say of them."""
