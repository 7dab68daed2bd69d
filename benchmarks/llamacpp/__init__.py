"""kvbench and llama.cpp on the same GGUF file: tokens of 10,000 texts, and logits of 1,000 tokens."""
