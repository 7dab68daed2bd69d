"""From a folder or a hub id to a model that is checked against transformers."""
