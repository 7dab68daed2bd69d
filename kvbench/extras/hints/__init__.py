"""Before a run: cells that will fail. After the first one: the command that it leads to."""
