"""The command that a first run leads to."""
