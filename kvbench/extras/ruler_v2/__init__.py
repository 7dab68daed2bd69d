"""RULER v2: numbers of a key, questions of MMLU and documents of HotpotQA among others of their kind."""
