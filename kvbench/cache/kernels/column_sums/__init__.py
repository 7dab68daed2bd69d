"""What the voting rows of a layer say of every column, reduced over the rows: all that window scores are made of."""
