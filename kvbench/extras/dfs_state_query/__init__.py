"""DFS state query: where a depth-first search stands after so many steps."""
