"""Attention of the prefill by flash-attn 2 and 3, on a GPU: values of `model.attention`."""
