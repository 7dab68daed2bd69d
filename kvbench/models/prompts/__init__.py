"""From samples to token ids: chat templates, truncation, the cut between context and question."""
