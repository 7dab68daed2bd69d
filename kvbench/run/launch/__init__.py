"""Where the work of a sweep is done: in this process, in several on this machine, or in jobs of SLURM.

Knows nothing of models, tasks or Hydra: it starts commands, or has them started.
"""

from kvbench.run.launch.inprocess import InProcess
from kvbench.run.launch.jobs import Job, read_jobs
from kvbench.run.launch.local import Local
from kvbench.run.launch.slurm import Slurm
from kvbench.run.launch.work import SIGNALS, Launcher, Task, Work

__all__ = ["SIGNALS", "InProcess", "Job", "Launcher", "Local", "Slurm", "Task", "Work", "read_jobs"]
