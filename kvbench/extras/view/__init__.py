"""Results folders as a live page: a server on this machine that reads rows again when files change."""
