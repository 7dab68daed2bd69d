"""KVgrad: repetitions of the context score its pairs, with the gradient of what the last layer makes of them."""
