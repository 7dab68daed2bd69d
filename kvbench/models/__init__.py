"""Loads models, builds prompts, prefills and decodes with our own cache.

transformers calls back at one place: `bridge.py`.
"""
