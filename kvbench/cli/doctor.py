"""`kvbench doctor`: what this installation can do, what it lacks, and the command that mends it."""

import importlib
import json
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.util import find_spec
from itertools import chain

from kvbench import __version__
from kvbench.cli.devices import devices
from kvbench.cli.errors import Exit
from kvbench.cli.finding import Finding
from kvbench.cli.places import places
from kvbench.cli.plugins import installed_plugins
from kvbench.cli.terminal import print_columns, screen
from kvbench.cli.usage import show
from kvbench.support import paths
from kvbench.support.errors import UserError

JSON = "--json"
USAGE = """kvbench doctor [data.root=FOLDER] [--json]: what this installation can do, what it lacks and how to get it.

A line for each package, file, plugin, device, folder and extra: "ok", "-" for what is not there and only some runs
need, "missing" for what every run needs. Below them the commands that mend it.

  --json   a list of objects (mark, name, text, command)

  kvbench doctor
  kvbench doctor data.root=/data/kvbench
Exit codes: 0 every run has what it needs, 3 something that every run needs is missing.
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
    "scipy": "scipy",
    "matplotlib": "matplotlib",
    "jinja2": "jinja2",
}
"""What every run and report needs: the package to install and the module that it brings."""
MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""Files of the reference model."""
AGAIN = "pip install --force-reinstall --no-deps kvbench"
EXTRAS = {
    "accelerate": (("accelerate",), "model.device_map=auto"),
    "benchmarks": (
        ("fuzzywuzzy", "jieba", "nltk", "rouge", "rouge_score"),
        "metrics of LongBench and InfiniteBench, RULER with essays",
    ),
    "energy": (("pynvml",), "joules of GPUs in kvbench report cost"),
    "flash": (("flash_attn",), "model.attention=flash, model.kernels=flash_attn"),
    "slurm": (("submitit",), "launcher=slurm"),
    "wandb": (("wandb",), "logger=wandb"),
}
"""Extras of the package: the modules that each brings, and what does not run without them."""


def main(arguments: Sequence[str]) -> int:
    """Print the findings; exit code 3 when something that every run needs is missing."""
    if any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return 0
    root, rest, as_json = None, [], JSON in arguments
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key == "data.root" and value:
            root = value
        elif argument != JSON:
            rest.append(argument)
    if rest:
        raise UserError(f"doctor takes no arguments but data.root=FOLDER and {JSON}, got {' '.join(rest)}")
    findings = list(chain(_packages(), _files(), installed_plugins(), devices(), places(root), _extras()))
    if as_json:
        print(json.dumps([found._asdict() for found in findings], indent=1))
        return _code(findings)
    print_columns([found[:3] for found in findings], ("", "bold"))
    console = screen()
    mending = [found for found in findings if found.command]
    if mending:
        console.print("\nTo get what only some runs need:")
    for found in mending:
        console.print(f"# {found.name}\n{found.command}", soft_wrap=True)
    return _code(findings)


def _code(findings: Sequence[Finding]) -> Exit:
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
    for extra, (modules, needs) in EXTRAS.items():
        absent = [module for module in modules if find_spec(module) is None]
        if absent:
            yield Finding(
                "-", f"extra {extra}", f"no {needs}: without {', '.join(absent)}", f"pip install 'kvbench[{extra}]'"
            )
        else:
            yield Finding("ok", f"extra {extra}", f"{', '.join(modules)}: {needs}")
