"""From a plan of cells to rows: prefill, evict, answer, record."""
