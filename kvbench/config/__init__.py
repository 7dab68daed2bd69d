"""From the words of a command line and the files of `conf/` to frozen objects; the only package that knows Hydra."""
