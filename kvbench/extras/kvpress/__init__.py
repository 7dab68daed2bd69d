"""Scores of presses of kvpress, and of whoever publishes one."""
