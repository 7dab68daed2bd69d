"""What every room uses and what knows nothing of the field. Here: the version of kvbench."""

__version__ = "0.1.0"
