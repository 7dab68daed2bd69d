"""Triton kernels: attention, the sums that scores read, and evictions of many cells, by a few launches."""
