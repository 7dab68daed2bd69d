"""`kvbench doctor`: what this installation can do, what it lacks, and the command that gets it.

With `--all` packages are loaded and devices tried: which dtypes multiply, which attention kernels run.
"""

import argparse
import importlib
import json
import os
import platform
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words, folded
from kvbench.cli.terminal import print_columns
from kvbench.support import __version__, paths
from kvbench.support.errors import UserError
from kvbench.support.named import Named, named, read
from kvbench.support.plugins import GroupItem, groups, items, plugins, source_of
from kvbench.support.quantity import count_noun
from kvbench.tasks.data.lock import read_lock
from kvbench.tasks.files import HOME, VARIABLE, absent, command, folder

PACKAGES = ("torch", "transformers", "hydra-core", "numpy", "pydantic", "wonderwords", "pandas", "pyarrow", "scipy")
PACKAGES += ("matplotlib", "jinja2")
"""What every run and report needs."""
MODEL = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
"""Files of the reference model."""
AGAIN = "pip install --force-reinstall --no-deps kvbench"
BENCHMARKS = ("fuzzywuzzy", "jieba", "nltk", "rouge", "rouge_score")
EXTRAS = {
    "accelerate": (("accelerate",), "model.device_map=auto"),
    "benchmarks": (BENCHMARKS, "metrics of LongBench and InfiniteBench, RULER with essays"),
    "energy": (("pynvml",), "joules of GPUs in kvbench report cost"),
    "flash": (("flash_attn",), "model.attention=flash, model.kernels=flash_attn"),
    "slurm": (("submitit",), "launcher=slurm"),
}
"""Extras of the package: the modules that each brings, and what does not run without them. The group `doctor` has more:
its files are named by extras of the package, with `keys: {modules: [NAME]}`."""
DTYPES = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 5e-2, "float16": 5e-3}
"""Values of `model.dtype`, and by how much a sum of `SIZE` random products may be wrong, in standard deviations."""
SIZE = 256
KERNELS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "math": "MATH"}
"""Kernels that torch's fused attention chooses from here; cuDNN's is switched off, it is chosen by timing."""


class Check(NamedTuple):
    """One line. `missing`: every run needs it and it is not there; `-`: only some runs need it. `command` gets it."""

    mark: Literal["ok", "-", "missing"]
    name: str
    text: str
    command: str | None = None


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
What this installation can do and what it lacks, with the commands that get it, in a few lines. --all has a line for \
every package, file, plugin, device, folder and extra, marked "ok", "-" (absent, and only some runs need it) or \
"missing" (every run needs it); it loads the packages and tries the devices.
"""
    parser.epilog = """
  kvbench doctor
  kvbench doctor --all data.root=/data/kvbench
Exit codes: 0 every run has what it needs, 3 something that every run needs is missing.
"""
    parser.words = Words("[data.root=FOLDER]", settings=("data.root=",))
    parser.add_argument("--all", action="store_true", help="every check, a line each (seconds)")
    parser.add_argument("--json", action="store_true", help="every check, as objects: mark, name, text, command")


def main(flags: argparse.Namespace) -> int:
    """Print the findings; exit code 3 when something that every run needs is missing."""
    root = None
    for word in flags.words:
        key, _, root = word.partition("=")
        if key != "data.root" or not root:
            raise UserError(f"doctor takes no arguments but data.root=FOLDER, --all and --json, got {word}")
    whole = flags.all or flags.json
    tried = devices() if whole else ()
    findings = [*_packages(whole), *_files(), *installed_plugins(), *tried, *places(root, whole), *_extras()]
    if flags.json:
        print(json.dumps([finding._asdict() for finding in findings], indent=1))
    elif not flags.all:
        print(folded("\n".join(_summary(findings))))
    else:
        print_columns([finding[:3] for finding in findings], ("", "bold"))
        if fixes := [f"# {finding.name}\n{finding.command}" for finding in findings if finding.command]:
            print("\nTo get what only some runs need:", *fixes, sep="\n")
    return ExitCode.DATA if any(finding.mark == "missing" for finding in findings) else ExitCode.OK


def _summary(findings: Sequence[Check]) -> Iterator[str]:
    """Yield the findings in a few lines: what runs, what is to be fixed, what can be added."""
    by_name = {finding.name: finding for finding in findings}
    versions = (f"{name} {by_name[name].text}" for name in ("torch", "transformers") if by_name[name].mark == "ok")
    yield ", ".join([f"kvbench {by_name['kvbench'].text.replace(' on ', ', ')}", *versions])
    gpus = count_noun(len([*Path("/dev").glob("nvidia[0-9]*")]), "NVIDIA GPU")
    yield f"device    {count_noun(os.cpu_count() or 1, 'processor')}, {gpus}"
    for kind, what in (("extra", "extras"), ("plugin", "plugins")):
        if names := [name.removeprefix(f"{kind} ") for name in _named(findings, kind, "ok")]:
            yield f"{what:<9} {', '.join(names)}"
    yield f"models    {by_name['HF_HOME'].text}"
    data, present = (len([*_named(findings, "data", mark)]) for mark in (None, "ok"))
    yield f"data      {present} of {data} data sets in {by_name['data.root'].text}: kvbench data list"
    if lacking := [name.removeprefix("extra ") for name in _named(findings, "extra", "-")]:
        yield f"optional  {', '.join(lacking)}: pip install 'kvbench[NAME]'"
    to_fix = [each for each in findings if each.mark == "missing" or (each.mark == "-" and each.name == "sentences")]
    if to_fix:
        yield "\nto fix"
    for finding in to_fix:
        yield f"  {finding.name}: {finding.text}"
        if finding.command:
            yield f"      {finding.command}"
    yield "\nkvbench doctor --all: every check, with devices and times; --json: the same for programs."


def _named(findings: Iterable[Check], kind: str, mark: str | None) -> Iterator[str]:
    """Return the names of a kind, such as `extra slurm`, with a mark; None: with any."""
    return (each.name for each in findings if each.name.startswith(f"{kind} ") and mark in (None, each.mark))


def _packages(load: bool) -> Iterator[Check]:
    yield Check("ok", "kvbench", f"{__version__} on Python {platform.python_version()}")
    for package in PACKAGES:
        try:
            version = metadata.version(package)
            if load:
                importlib.import_module(package.removesuffix("-core"))
        except metadata.PackageNotFoundError:
            yield Check("missing", package, f"not installed: pip install {package}")
        except Exception as error:  # a broken package raises anything: ImportError, OSError of a shared library
            cause = f"{type(error).__name__}: {' '.join(str(error).split())}"
            yield Check("missing", package, f"{cause}: pip install --force-reinstall {package}")
        else:
            yield Check("ok", package, version)


def _files() -> Iterator[Check]:
    for name, folder_of, files in (
        ("settings", paths.conf, ()),
        ("reference model", lambda: paths.assets() / "reference", MODEL),
    ):
        try:
            folder = folder_of()
        except FileNotFoundError as error:
            yield Check("missing", name, f"{error}: {AGAIN}")
            continue
        missing = [file for file in files if not (folder / file).is_file()]
        text = f"{folder} is without {', '.join(missing)}: {AGAIN}" if missing else str(folder)
        yield Check("missing" if missing else "ok", name, text)


def _extras() -> Iterator[Check]:
    brought = {name: (wants.keys["modules"], wants.says) for name, wants in _brought("doctor").items()}
    for extra, (modules, needs) in sorted((EXTRAS | brought).items()):
        name, missing = f"extra {extra}", [module for module in modules if find_spec(module) is None]
        if missing:
            install = f"pip install 'kvbench[{extra}]'" + " --no-build-isolation" * (extra == "flash")
            yield Check("-", name, f"no {needs}: without {', '.join(missing)}", install)
        else:
            yield Check("ok", name, f"{', '.join(modules)}: {needs}")


def _brought(group: str) -> Mapping[str, Named]:
    """Return the members of a group; none where the folder of settings is lost, which is a line of its own."""
    try:
        return named(group)
    except FileNotFoundError:
        return {}


def installed_plugins() -> Iterator[Check]:
    """Yield a line for every plugin; one that is broken is missing, because it brings nothing."""
    for point in plugins():
        assert point.dist is not None
        name = f"plugin {point.dist.name}"
        try:
            source = source_of(point)
            added = [item for group in groups() for item in items(group).values() if item.source == source]
            for item in added:
                _build(item)
        except ValueError as error:
            yield Check("missing", name, str(error))
        else:
            names = ", ".join(f"{item.group} {item.name}" for item in added)
            yield Check("ok", name, f"{source.version}: {names or 'adds nothing'}")


def _build(item: GroupItem) -> None:
    """Raise UserError for a file that does not instantiate, or names code that does not import; one with a setting that
    has no default is not tried.
    """
    from kvbench.config.compose import combinations, resolved
    from kvbench.config.entries import MISSING, flat
    from kvbench.config.overrides import GROUPS, parse
    from kvbench.config.settings import build

    if item.group not in GROUPS:
        read(item.path).load()
        return
    (tree,) = combinations(parse([f"{item.group}={item.name}"]))
    if not any(value == MISSING for _, value in flat(tree[item.group])):
        part = resolved({name: tree[name] for name in ("seed", "data", item.group)})
        build(item.group, part[item.group])


def devices() -> Iterator[Check]:
    """Yield the devices that torch sees and what works on each. Nothing where torch does not load."""
    try:
        import torch
    except Exception:  # reported with the packages
        return
    yield Check("ok", "cpu", f"{torch.get_num_threads()} threads")
    yield from _tried(torch, "cpu")
    if not torch.cuda.is_available():
        yield Check("-", "cuda", "no GPU seen by torch: runs use the CPU, model.device=cuda is refused")
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info(index))
        product = torch.cuda.get_device_properties(index).name
        yield Check("ok", f"cuda:{index}", f"{product}, {free:.0f} of {total:.0f} GiB free")
        yield from _tried(torch, f"cuda:{index}")
    for name, kernels in {**_brought("kernels"), **_brought("segments")}.items():
        package = kernels.keys.get("package")
        if package is None or find_spec(package):
            yield Check("ok", name, metadata.version(package) if package else kernels.says)
        else:
            yield Check("-", name, f"not installed: no model.kernels={name} on a GPU", kernels.keys["install"])


def _tried(torch: Any, device: str) -> Iterator[Check]:
    """Yield which dtypes a small product and a small attention run in."""
    works, fails = [], []
    for name, tolerance in DTYPES.items():
        try:
            works.append(f"{name} {_multiply(torch, device, getattr(torch, name), tolerance):.2f} ms")
        except Exception as error:  # an unsupported dtype raises what it likes
            first_line = (str(error).strip().splitlines() or [""])[0][:80]
            fails.append(f"{name} ({type(error).__name__}: {first_line})")
    text = ", ".join(works) + (f"; not {', '.join(fails)}: choose another with model.dtype" if fails else "")
    yield Check("-" if fails else "ok", f"{device} dtypes", f"{SIZE} x {SIZE} product: {text}")
    for name in ("float32", "bfloat16", "float16"):
        kernels = [kernel for kernel in KERNELS if _attends(torch, device, getattr(torch, name), kernel)]
        yield Check("ok" if kernels else "-", f"{device} sdpa {name}", ", ".join(kernels) or "no kernel runs")


def _multiply(torch: Any, device: str, dtype: Any, tolerance: float) -> float:
    """Milliseconds of the fastest of three products. Raises ValueError for a wrong result."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64) for _ in range(2))
    fast = [part.to(device, dtype) for part in (left, right)]
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        product = fast[0] @ fast[1]
        product[0, 0].item()  # waits for the device
        durations.append(time.perf_counter() - start)
    expected = fast[0].double().cpu() @ fast[1].double().cpu()
    error = ((product.double().cpu() - expected).abs().max() / SIZE**0.5).item()
    if not error < tolerance:
        raise UserError(f"a product is wrong by {error:.1e}")
    return 1000 * min(durations)


def _attends(torch: Any, device: str, dtype: Any, kernel: str) -> bool:
    """Return whether fused attention with a causal mask runs with one kernel alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    part = torch.ones(1, 2, 16, 64, device=device, dtype=dtype)
    try:
        with warnings.catch_warnings(), sdpa_kernel(getattr(SDPBackend, KERNELS[kernel])):
            warnings.simplefilter("ignore")
            output = torch.nn.functional.scaled_dot_product_attention(part, part, part, is_causal=True)
            return bool((output.float() - 1).abs().max().item() < 0.01)
    except Exception:
        return False


def places(root: str | None, with_splitter: bool = True) -> Iterator[Check]:
    """Yield the folders that runs read from, and what each family of tasks lacks under `data.root`.

    with_splitter: also how sentences are split where no essays are at hand; nltk takes a second to load.
    """
    from kvbench.tasks.ruler.haystack import DOWNLOAD, resolved

    try:
        from huggingface_hub import constants
    except Exception:  # transformers does not load either, which is reported with the packages
        yield Check("-", "HF_HOME", "huggingface_hub does not load: models cannot be downloaded from the hub")
    else:
        offline = "; HF_HUB_OFFLINE is set: only models that were downloaded before" if constants.HF_HUB_OFFLINE else ""
        yield Check("ok", "HF_HOME", f"{_free_space(Path(constants.HF_HOME))}{offline}")
    yield Check("ok", "KVBENCH_HOME", f"{_free_space(paths.home())}; hashes of large model files")
    under = folder(root)
    named_by = "data.root" if root else next((name for name in (VARIABLE, HOME) if os.environ.get(name)), None)
    origin = named_by or f"the default; data.root or {VARIABLE} names another"
    yield Check("ok" if under.is_dir() else "-", "data.root", f"{_free_space(under)} ({origin})")
    for name, source in read_lock().items():
        missing = absent(root, source)
        pins, downloads = source.pins(under)
        unpinned = f"; {downloads - pins} of {downloads} downloads have no pinned SHA-256" if pins < downloads else ""
        if missing:
            text = f"{source.tasks}: no {', '.join(missing)} under {under}{unpinned}"
            yield Check("-", f"data {name}", text, command(root, name))
        else:
            yield Check("ok", f"data {name}", f"{source.tasks}{unpinned}")
    if not with_splitter and absent(root, read_lock()["paul_graham_essays"]):
        return
    try:
        if resolved("auto") == "english":
            yield Check("ok", "sentences", "the English Punkt model, as RULER uses it")
        else:
            text = "Punkt without its English model: RULER tasks with essays are not the official ones"
            yield Check("-", "sentences", text, DOWNLOAD)
    except ValueError as error:
        yield Check("-", "sentences", str(error))


def _free_space(path: Path) -> str:
    """Return a folder: whether it exists, and the free space of its disk."""
    at = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    free = shutil.disk_usage(at).free / 2**30
    return f"{path}{'' if path.is_dir() else ' (not there yet)'}, {free:.0f} GiB free"
