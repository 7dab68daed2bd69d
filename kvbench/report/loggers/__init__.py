"""Where rows are mirrored to besides the results folder, which stays the record: nothing is read back from there."""

from kvbench.report.loggers.logger import Logger, NoLogger
from kvbench.report.loggers.wandb import Wandb

__all__ = ["Logger", "NoLogger", "Wandb"]
