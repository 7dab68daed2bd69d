"""What happens to the KV pairs of a layer once it is chosen which of them are kept: one class per kind."""
