"""One file per command, and what all commands share: parser, terminal, errors."""
