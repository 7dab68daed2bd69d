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
from kvbench.cli.devices import devices
from kvbench.cli.errors import Exit
from kvbench.cli.finding import Finding
from kvbench.cli.places import places
from kvbench.cli.plugins import installed_plugins

USAGE = """kvbench doctor [data.root=FOLDER]: what this installation can do, what is missing and how to get it.
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
    "accelerate": ("accelerate",),
    "benchmarks": ("fuzzywuzzy", "jieba", "nltk", "rouge", "rouge_score"),
    "flash": ("flash_attn",),
    "slurm": ("submitit",),
    "wandb": ("wandb",),
}


def main(arguments: Sequence[str]) -> int:
    """Print the findings; exit code 3 when something that every run needs is missing."""
    if any(argument in ("-h", "--help") for argument in arguments):
        print(USAGE, end="")
        return 0
    root, rest = None, []
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "data.root" and value:
            root = value
        else:
            rest.append(argument)
    if rest:
        raise ValueError(f"doctor takes no arguments but data.root=FOLDER, got {' '.join(rest)}")
    findings = list(chain(_packages(), _files(), installed_plugins(), devices(), places(root), _extras()))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for found in findings:
        table.add_row(found.mark, found.name, Text(found.text))
    console = Console(highlight=False, markup=False)
    console.print(table)
    mending = [found for found in findings if found.command]
    if mending:
        console.print("\nTo get what only some tasks need:")
    for found in mending:
        console.print(f"# {found.name}\n{found.command}", soft_wrap=True)
    return Exit.DATA if any(found.mark == "missing" for found in findings) else Exit.OK


def _packages() -> Iterator[Finding]:
    yield Finding("ok", "kvbench", f"{__version__} on Python {platform.python_version()}")
    for package, module in PACKAGES.items():
        try:
            version = metadata.version(package)
            importlib.import_module(module)
        except metadata.PackageNotFoundError:
            yield Finding("missing", package, f"not installed: pip install {package}")
        except Exception as error:  # a broken package raises what it likes: ImportError, OSError of a shared library
            said = " ".join(str(error).split())
            yield Finding(
                "missing", package, f"{type(error).__name__}: {said}: pip install --force-reinstall {package}"
            )
        else:
            yield Finding("ok", package, version)


def _files() -> Iterator[Finding]:
    try:
        yield Finding("ok", "settings", str(paths.conf()))
    except FileNotFoundError as error:
        yield Finding("missing", "settings", f"{error}: {AGAIN}")
    try:
        model = paths.assets() / "reference"
    except FileNotFoundError as error:
        yield Finding("missing", "reference model", f"{error}: {AGAIN}")
        return
    absent = [name for name in MODEL if not (model / name).is_file()]
    if absent:
        yield Finding("missing", "reference model", f"{model} is without {', '.join(absent)}: {AGAIN}")
    else:
        yield Finding("ok", "reference model", str(model))


def _extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        absent = [module for module in modules if find_spec(module) is None]
        if absent:
            yield Finding("-", f"extra {extra}", f"without {', '.join(absent)}: pip install 'kvbench[{extra}]'")
        else:
            yield Finding("ok", f"extra {extra}", ", ".join(modules))
