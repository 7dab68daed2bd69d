"""What the kernels say and take on this machine's GPU: `python -m benchmarks.gpu_check`."""
