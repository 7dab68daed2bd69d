"""NoLiMa: a needle that shares no word with its question."""
