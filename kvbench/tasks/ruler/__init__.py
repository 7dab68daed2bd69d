"""RULER (Hsieh et al. 2024, https://arxiv.org/abs/2404.06654), the synthetic tasks of https://github.com/NVIDIA/RULER."""
