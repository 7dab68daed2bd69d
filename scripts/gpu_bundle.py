"""Fill build/wheels with what a GPU machine without network lacks (Python 3.12, Linux, x86-64): `make gpu-bundle`.

    python scripts/gpu_bundle.py [--out FOLDER]

FOLDER/kvbench: what `kvbench run` imports. FOLDER/kvpress: kvpress 0.5.5 with a transformers below 5.3, and what these
import. torch, triton, numpy and the like are expected on the machine. `kvbench compare` and `report` need
pandas, pyarrow and scipy too, which would double the bundle: they are for the machine that results go back to. Raises
SystemExit for a bundle of 64 MiB or more.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT = 64 * 2**20
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_28_x86_64", "manylinux_2_34_x86_64")
TARGET = ("--python-version", "3.12", *(word for platform in PLATFORMS for word in ("--platform", platform)))
BUILT = "antlr4-python3-runtime==4.9.3"
"""Has no wheel on PyPI; pure Python."""
KVBENCH = (
    *(
        "annotated-types",
        "huggingface-hub",
        "hydra-core",
        "jaxtyping",
        "jinja2",
        "markdown-it-py",
        "markupsafe",
        "mdurl",
    ),
    *("omegaconf", "packaging", "pydantic", "pydantic-core", "pygments", "pyyaml", "regex", "rich", "safetensors"),
    *("tokenizers", "tqdm", "transformers", "typing-extensions", "typing-inspection", "wadler-lindig", "wonderwords"),
    *("anyio", "filelock", "fsspec", "h11", "hf-xet", "httpcore2", "httpx2", "idna", "sniffio", "truststore", "typer"),
)
"""Versions are those of constraints.txt."""
KVPRESS = (
    *(
        "kvpress==0.5.5",
        "transformers==5.2.0",
        "tokenizers<=0.23.0",
        "huggingface-hub<2",
        "cachetools<6",
        "safetensors",
    ),
    *("accelerate<2", "regex", "pyyaml", "packaging", "tqdm", "psutil", "typing-extensions", "typer-slim"),
    *("anyio", "certifi", "filelock", "fsspec", "h11", "hf-xet", "httpcore", "httpx", "idna"),
)


def main() -> None:
    """Download and say what it takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "wheels")
    out = parser.parse_args().out
    shutil.rmtree(out, ignore_errors=True)
    pip = (sys.executable, "-m", "pip")
    for name, packages, pins in (("kvbench", KVBENCH, ("-c", str(ROOT / "constraints.txt"))), ("kvpress", KVPRESS, ())):
        download = (*pip, "download", "-q", "--no-deps", "--only-binary=:all:", *TARGET, *pins)
        subprocess.run([*download, "-d", str(out / name), *packages], check=True)
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(out / "kvbench"), BUILT], check=True)
    for folder in sorted(out.iterdir()):
        wheels = list(folder.glob("*.whl"))
        print(f"{folder}: {len(wheels)} wheels, {sum(wheel.stat().st_size for wheel in wheels) / 2**20:.1f} MiB")
    total = sum(wheel.stat().st_size for wheel in out.glob("*/*.whl"))
    if total >= LIMIT:
        sys.exit(f"the bundle takes {total / 2**20:.1f} MiB, allowed: less than {LIMIT >> 20}; leave a package out")


if __name__ == "__main__":
    main()
