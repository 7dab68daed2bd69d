"""Methods that are worth it, by prompts and a memory."""
