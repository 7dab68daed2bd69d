"""kvbench: an evaluation bench for key-value cache eviction in long-context inference.

Importing the package imports nothing else: rooms are entered by name (`kvbench.eviction.evict`, `kvbench.report`), so
that a command that only prints help, lists names or reads rows never pays for torch.
"""

__version__ = "0.1.0"
