"""What the core does without: a folder for each extra, with its code and settings."""
