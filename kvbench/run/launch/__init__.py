"""Where the work of a sweep is done: in this process, in several processes of this machine, or in SLURM jobs."""

from kvbench.run.launch.launcher import SIGNALS, InProcess, Launcher, Task, Work
from kvbench.run.launch.local import Local
from kvbench.run.launch.slurm import Job, Slurm, read_jobs

__all__ = ["SIGNALS", "InProcess", "Job", "Launcher", "Local", "Slurm", "Task", "Work", "read_jobs"]
