"""From samples to token ids: chat templates, truncation, the border between context and question."""
