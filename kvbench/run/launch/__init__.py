"""Where the work of a sweep is done: in this process, in several processes of this machine, or in SLURM jobs."""
