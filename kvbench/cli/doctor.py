"""`kvbench doctor`: what this installation can do, what it lacks, and the command that mends it."""

import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench import __version__, paths
from kvbench.cli.errors import Exit

USAGE = """kvbench doctor: versions, devices and files of this installation, what is missing and how to get it.
"""
EXTRAS = {
    "flash": ("flash_attn",),
    "slurm": ("submitit",),
    "report": ("matplotlib", "pyarrow", "duckdb"),
    "wandb": ("wandb",),
}


def main(arguments: Sequence[str]) -> int:
    """Print the findings; exit code 3 when something that every run needs is missing."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        return 0
    if arguments:
        raise ValueError(f"doctor takes no arguments, got {' '.join(arguments)}")
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    healthy = True
    for mark, name, finding in (*_packages(), *_files(), *_devices(), *_extras()):
        healthy &= mark != "missing"
        table.add_row(mark, name, Text(finding))
    Console(highlight=False).print(table)
    return Exit.OK if healthy else Exit.DATA


Finding = tuple[str, str, str]


def _packages() -> Iterator[Finding]:
    yield "ok", "kvbench", f"{__version__} on Python {platform.python_version()}"
    for name in ("torch", "transformers", "hydra-core", "wonderwords"):
        yield "ok", name, metadata.version(name)


def _files() -> Iterator[Finding]:
    yield "ok", "settings", str(paths.conf())
    model = paths.assets() / "reference"
    complete = all((model / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json"))
    yield ("ok" if complete else "missing"), "reference model", str(model) if complete else f"{model}: install again"


def _devices() -> Iterator[Finding]:
    import torch

    yield "ok", "cpu", f"{torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            yield "ok", f"cuda:{index}", f"{found.name}, {found.total_memory / 2**30:.0f} GiB"
    else:
        yield "-", "cuda", "no GPU seen by torch: runs use the CPU"


def _extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        absent = [module for module in modules if find_spec(module) is None]
        yield (
            ("-", f"extra {extra}", f"without {', '.join(absent)}: pip install 'kvbench[{extra}]'")
            if absent
            else ("ok", f"extra {extra}", ", ".join(modules))
        )
