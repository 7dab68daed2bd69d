"""LongProc: long answers that follow a procedure."""
