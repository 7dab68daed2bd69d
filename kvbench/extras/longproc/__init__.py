"""LongProc: long answers in six procedures, from tables of a page to plans of a journey."""
