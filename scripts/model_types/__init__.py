"""Which causal types of transformers are read: tiny models, what must hold for them, and the page about it."""
