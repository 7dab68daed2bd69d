"""What an answer is worth: one benchmark family a file, every function with its formula, aggregation and namesakes."""
