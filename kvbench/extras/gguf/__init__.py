"""Models in GGUF files: read as they are, or as the folders that a pull makes of them."""
