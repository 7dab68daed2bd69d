"""BABILong: facts of bAbI between the sentences of books."""
