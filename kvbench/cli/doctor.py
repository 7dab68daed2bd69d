"""`kvbench doctor`: what this installation can do, what it lacks, and the command that mends it."""

import importlib
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from itertools import chain

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvbench import __version__, paths
from kvbench.cli.errors import Exit

USAGE = """kvbench doctor: versions, devices and files of this installation, what is missing and how to get it.
"""
PACKAGES = {
    "torch": "torch",
    "transformers": "transformers",
    "hydra-core": "hydra",
    "numpy": "numpy",
    "pydantic": "pydantic",
    "wonderwords": "wonderwords",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "duckdb": "duckdb",
    "scipy": "scipy",
    "matplotlib": "matplotlib",
    "jinja2": "jinja2",
}
"""What every run and report needs: the package to install and the module that it brings."""
MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""Files of the reference model."""
AGAIN = "pip install --force-reinstall --no-deps kvbench"
EXTRAS = {
    "flash": ("flash_attn",),
    "slurm": ("submitit",),
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
    for mark, name, finding in chain(_packages(), _files(), _devices(), _extras()):
        healthy &= mark != "missing"
        table.add_row(mark, name, Text(finding))
    Console(highlight=False).print(table)
    return Exit.OK if healthy else Exit.DATA


Finding = tuple[str, str, str]


def _packages() -> Iterator[Finding]:
    yield "ok", "kvbench", f"{__version__} on Python {platform.python_version()}"
    for package, module in PACKAGES.items():
        try:
            version = metadata.version(package)
            importlib.import_module(module)
        except metadata.PackageNotFoundError:
            yield "missing", package, f"not installed: pip install {package}"
        except Exception as error:  # a broken package raises what it likes: ImportError, OSError of a shared library
            said = " ".join(str(error).split())
            yield "missing", package, f"{type(error).__name__}: {said}: pip install --force-reinstall {package}"
        else:
            yield "ok", package, version


def _files() -> Iterator[Finding]:
    try:
        yield "ok", "settings", str(paths.conf())
    except FileNotFoundError as error:
        yield "missing", "settings", f"{error}: {AGAIN}"
    try:
        model = paths.assets() / "reference"
    except FileNotFoundError as error:
        yield "missing", "reference model", f"{error}: {AGAIN}"
        return
    absent = [name for name in MODEL if not (model / name).is_file()]
    if absent:
        yield "missing", "reference model", f"{model} is without {', '.join(absent)}: {AGAIN}"
    else:
        yield "ok", "reference model", str(model)


def _devices() -> Iterator[Finding]:
    try:
        import torch
    except Exception:  # said above, with the command
        return
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
