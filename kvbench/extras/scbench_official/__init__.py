"""SCBench as its authors run it: its prompts, conversations and metrics."""
