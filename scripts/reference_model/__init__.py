"""How the embedded reference model is made.

Words, tokenizer, training data, curriculum, loop, measurements, model card.
"""
