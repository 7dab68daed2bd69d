"""Where the work of a sweep is done: in this process, in several processes of this machine, or in SLURM jobs."""

from kvbench.run.launch.local import SIGNALS, Launcher, Local, Task, Work
from kvbench.run.launch.slurm import Job, Slurm, read_jobs

__all__ = ["SIGNALS", "Job", "Launcher", "Local", "Slurm", "Task", "Work", "read_jobs"]
