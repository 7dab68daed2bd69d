"""From a plan of cells to rows: prefill, evict, decode, record."""
