"""What is timed instead of judged: a prompt read, cut and decoded, beside what the device could have done."""
