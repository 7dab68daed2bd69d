"""Official code run on prompts made up here, as far as the ids that a model reads: the golden transcripts."""
