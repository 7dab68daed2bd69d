"""The command line: the only room that knows Hydra. Configuration ends here as frozen dataclasses."""
