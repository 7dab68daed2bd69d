"""Settings of the command line and of `conf/` to frozen objects; only this package imports Hydra."""
