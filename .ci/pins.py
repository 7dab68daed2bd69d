"""Is constraints.txt complete and true?  ``python .ci/pins.py`` checks, ``python .ci/pins.py --write`` writes it anew.

Complete: every package that pyproject.toml names in any extra is pinned, at a version that its range admits. True:
every package that kvbench needs, directly or not, is installed here at the pinned version; of extras, those that are
installed. Writing takes the versions of the running environment, which should be fresh and must hold every extra: see
``make constraints``. A local version (``+cpu``) is left out of a pin, so that the same file chooses the CPU build here
and the CUDA build elsewhere.

.ci/hashes.txt has the same pins with the SHA-256 of every file that the package index has of each, for ``make hashed``.
torch has none there: its CPU build is on an index of its own, and pip takes whichever build a machine offers. Writing
hashes asks the index through uv, which must be installed.
"""

import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "constraints.txt"
HASHES = ROOT / ".ci" / "hashes.txt"
UNHASHED = {"torch"}
UNPINNED = {"flash-attn", "triton"}  # the torch and CUDA of each machine decide
HEADER = """\
# Every package that kvbench and its extras need, at the versions that the tests ran with. Written by
# `make constraints`, checked by `make check`. torch carries no local version: the CPU build where the index offers
# one, else the CUDA build, whose own nvidia-* packages torch pins itself.
"""


def requirements() -> list[Requirement]:
    """Return what pyproject.toml names: to build, to run, and for every extra."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    groups = [settings["build-system"]["requires"], project["dependencies"], *project["optional-dependencies"].values()]
    named = [Requirement(line) for group in groups for line in group]
    return [requirement for requirement in named if canonicalize_name(requirement.name) not in UNPINNED]


def installed(named: list[Requirement]) -> dict[str, str]:
    """Name and public version of what is installed here of ``named`` and of all that it needs in turn."""
    found: dict[str, str] = {}
    todo = [(requirement.name, frozenset(requirement.extras)) for requirement in named]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        try:
            package = distribution(name)
        except PackageNotFoundError:  # an extra that is not installed here
            continue
        found[canonicalize_name(name)] = Version(package.version).public
        for requirement in map(Requirement, package.requires or ()):
            wanted = [requirement.marker is None or requirement.marker.evaluate({"extra": e}) for e in ("", *extras)]
            entry = (requirement.name, frozenset(requirement.extras))
            if any(wanted) and entry not in seen:
                seen.add(entry)
                todo.append(entry)
    return found


def pinned() -> dict[str, str]:
    """Name and version of every line of constraints.txt."""
    lines = [line.split("#")[0].strip() for line in FILE.read_text().splitlines()]
    pins = [line.split("==") for line in lines if line]
    return {canonicalize_name(name): version for name, version in pins}


def hashed() -> dict[str, str]:
    """Name and version of every requirement of hashes.txt that has a hash."""
    lines = HASHES.read_text().replace("\\\n", " ").splitlines()
    pins = [line.split()[0].split("==") for line in lines if "--hash=sha256:" in line]
    return {canonicalize_name(name): version for name, version in pins}


def write_hashes() -> None:
    """Write hashes.txt: what the package index says of the pins."""
    command = ["-m", "uv", "pip", "compile", "-q", "--no-deps", "--generate-hashes", "--no-annotate", "--no-header"]
    lines = "".join(f"{name}=={version}\n" for name, version in pinned().items() if name not in UNHASHED)
    subprocess.run([sys.executable, *command, "-", "-o", str(HASHES)], input=lines, text=True, check=True)


def complaints() -> list[str]:
    """Return what is wrong, one sentence each."""
    pins, named = pinned(), requirements()
    wrong = [f"{r.name} is in pyproject.toml and has no pin" for r in named if canonicalize_name(r.name) not in pins]
    for requirement in named:
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is not None and not requirement.specifier.contains(pin, prereleases=True):
            wrong.append(f"{requirement.name}=={pin} is outside the range of pyproject.toml, {requirement.specifier}")
    for name, version in sorted(installed(named).items()):
        if pins.get(name) != version:
            wrong.append(f"{name}=={version} is installed, pinned is {pins.get(name, 'nothing')}")
    wrong += [f"{name}=={pin} carries a local version" for name, pin in pins.items() if "+" in pin]
    if hashed() != {name: pin for name, pin in pins.items() if name not in UNHASHED}:
        wrong.append("hashes.txt has other pins than constraints.txt: run make constraints")
    return wrong


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        absent = {canonicalize_name(r.name) for r in requirements()} - set(installed(requirements()))
        if absent:
            sys.exit(f"not installed here, so no version to pin: {', '.join(sorted(absent))}; use `make constraints`")
        FILE.write_text(HEADER + "".join(f"{n}=={v}\n" for n, v in sorted(installed(requirements()).items())))
        write_hashes()
    wrong = complaints()
    print(
        "\n".join(wrong) or f"constraints.txt pins {len(pinned())} packages", file=sys.stderr if wrong else sys.stdout
    )
    sys.exit(bool(wrong))
