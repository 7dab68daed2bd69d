"""Decoding on a GPU: kernels attend to one flat store of all cells, and a CUDA graph replays the steps of answers."""
