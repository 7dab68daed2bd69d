"""flash-attn 2 and 3 for the prefill on a GPU: values of `model.attention`."""
