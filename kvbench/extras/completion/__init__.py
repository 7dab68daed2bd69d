"""Completion in bash, zsh and fish: what can stand where the cursor is."""
