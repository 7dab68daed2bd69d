"""Runs of agents with tools: recorded, made up, and from BFCL."""
