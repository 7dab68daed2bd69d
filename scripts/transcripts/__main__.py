"""Golden transcripts by the official code: tests/golden/transcripts/BENCHMARK.json.

    PYTHONPATH=. PYTHON -m scripts.transcripts FOLDER [BENCHMARK ...]

FOLDER has a checkout of each repository of `OFFICIAL` under its name, at its commit, which is checked. A second commit
of a repository is in NAME-COMMIT, with seven digits. PYTHON has requirements.txt beside this file, not kvbench's
transformers: the transcripts must not depend on which one is installed. Each benchmark runs in a process of its own.
--train makes the vocabularies anew first.

The official modules run as they are, on rows and templates made up here (tests/transcripts/made_up.py) and with the
tokenizers of tests/transcripts/families.py. Where they would load a model, they get one that records what it is asked.
A file holds hashes and figures, no text.
"""

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts.transcripts.stand_ins import stay_on_cpu
from scripts.transcripts.train import train
from tests.transcripts.families import FOLDER
from tests.transcripts.made_up import write
from tests.transcripts.transcript import Transcript


@dataclass(frozen=True)
class Official:
    """Where the official code of a benchmark is, and the function here that runs it."""

    repository: str
    commit: str
    files: str
    runs: str
    code: tuple[str, str] | None = None  # another repository, and its commit, that the program reads

    def run(self) -> Callable[..., Iterator[tuple[str, Transcript]]]:
        module, _, function = self.runs.partition(":")
        return getattr(import_module(f"scripts.transcripts.{module}"), function)


LONGBENCH = "THUDM/LongBench", "2e00731f8d0bff23dc4325161044d0ed8af94c1e"
HELMET = "princeton-nlp/HELMET", "4526dfbdc512bd9ff721da336bff4e3e75ecfd27"
OFFICIAL = {
    "longbench": Official(*LONGBENCH, "LongBench/pred.py: get_pred", "longbench:version_1"),
    "longbench_v2": Official(*LONGBENCH, "pred.py: get_pred", "longbench:version_2"),
    "infinitebench": Official(
        "OpenBMB/InfiniteBench",
        "88b3daa6989da2fbe0077170d7a3c84c25d5ae58",
        "src/eval_utils.py: create_prompt; src/eval_yarn_mistral.py: get_pred",
        "infinitebench:transcripts",
    ),
    "kvpress": Official(
        "NVIDIA/kvpress",
        "8bb29b9c3078452a86d692f29123fa6c793e2b05",
        "kvpress/pipeline.py: preprocess",
        "kvpress:transcripts",
    ),
    "kvzip": Official(
        "snu-mllab/KVzip",
        "5d8472975d286e3da6b52178af39d18904330c0d",
        "data/load.py, data/wrapper.py, model/wrapper.py, model/template.py",
        "kvzip:transcripts",
    ),
    "ruler": Official(
        "NVIDIA/RULER",
        "c3f5e3b4f87f97e048793bb510a3a6b19a46bf3a",
        "scripts/data/template.py, scripts/data/synthetic/*.py, scripts/pred/model_wrappers.py: HuggingFaceModel",
        "ruler:transcripts",
    ),
    "ruler_2024": Official(
        "NVIDIA/RULER",
        "e40fae14df4e439bb355d395b574ac4e7398036d",
        "scripts/data/template.py, scripts/data/synthetic/*.py, scripts/pred/model_wrappers.py: HuggingFaceModel",
        "ruler:era_2024",
    ),
    "scbench_official": Official(
        "microsoft/MInference",
        "fb56c917f618e8645f1cfc37535afd7424d78f0d",
        "scbench/run_scbench.py: get_pred; scbench/eval_utils.py: GreedySearch, GreedySearch_vLLM",
        "scbench:transcripts",
    ),
    "helmet": Official(
        *HELMET, "eval.py, arguments.py, data.py, model_utils.py: HFModel, configs/*_short.yaml", "helmet:transcripts"
    ),
    "longproc": Official(
        *HELMET,
        "eval.py, model_utils.py: HFModel, longproc_addon/longproc_helmet_loader.py, longproc_addon/configs",
        "helmet:longproc",
        ("princeton-pli/LongProc", "78e873ae395e42625fba7942bbb92713de08b2a6"),
    ),
    "nolima": Official(
        "adobe-research/NoLiMa",
        "7532e4eebf095c5540dc256900a63968da58a9d0",
        "evaluation/{run_tests,async_evaluate,async_api_connector}.py, data/book_haystack.py",
        "nolima:transcripts",
    ),
    "math_rkv": Official(
        "Zefan-Cai/R-KV", "d15c9767e67c2bd9807128fecc35223fa2484a69", "run_math.py", "rkv:transcripts"
    ),
    "needle_official": Official(
        "gkamradt/LLMTest_NeedleInAHaystack",
        "7b90d285651b68d39a94f3d3bd3672f84192c989",
        "needlehaystack/llm_needle_haystack_tester.py, needlehaystack/providers/openai.py",
        "needle:official",
    ),
    "needle_pyramidkv": Official(
        "Zefan-Cai/KVCache-Factory",
        "e33367f1fd3a60b9d934be0f0f7531ad669b9c58",
        "run_needle_in_haystack.py",
        "needle:pyramidkv",
    ),
    "needle_lava": Official(
        "MGDDestiny/Lava",
        "71d3cc89dfd10edf524e7eee2bb417b4a129f1b8",
        "experiments/needle_in_haystack/run_needle_in_haystack.py",
        "needle:lava",
    ),
    "pg19": Official(
        "mit-han-lab/streaming-llm",
        "2e5042606d69933d88fbf909bd77907456b9b4dd",
        "examples/eval_long_ppl.py",
        "streaming_llm:transcripts",
    ),
}


def checkout(folder: Path, repository: str, commit: str) -> Path:
    """The folder of a repository. Ends the program if it is at another commit."""
    path = folder / repository.partition("/")[2]
    if (other := path.with_name(f"{path.name}-{commit[:7]}")).is_dir():
        path = other
    command = ["git", "-C", str(path), "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if head != commit:
        sys.exit(f"{path} is at {head}: check out {commit}")
    return path


def environment() -> dict[str, str]:
    """The versions that ids depend on."""
    packages = {name: importlib.metadata.version(name) for name in ("tokenizers", "transformers", "torch", "jinja2")}
    return {"python": platform.python_version(), **packages}


def record(folder: Path, benchmark: str) -> None:
    """Run the official code of a benchmark and write its file."""
    official = OFFICIAL[benchmark]
    with TemporaryDirectory() as root:
        write(Path(root))
        code = (checkout(folder, *official.code),) if official.code else ()
        made = official.run()(checkout(folder, official.repository, official.commit), Path(root), *code)
        transcripts = {name: transcript.fields() for name, transcript in made}
    content: dict[str, Any] = {"repository": official.repository, "commit": official.commit, "files": official.files}
    content |= {"code": " ".join(official.code)} if official.code else {}
    content |= {"environment": environment()}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(fields)}" for name, fields in transcripts.items())
    text = json.dumps(content, indent=1)[:-2] + f',\n "transcripts": {{\n{lines}\n }}\n}}\n'
    (FOLDER / f"{benchmark}.json").write_text(text, "utf-8")
    print(f"{benchmark}: {len(transcripts)} transcripts")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("benchmarks", nargs="*", default=list(OFFICIAL))
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    if arguments.train:
        train()
    if len(arguments.benchmarks) == 1:
        stay_on_cpu()
        record(arguments.folder.resolve(), arguments.benchmarks[0])
    else:
        for name in arguments.benchmarks:
            subprocess.run([sys.executable, "-m", "scripts.transcripts", str(arguments.folder), name], check=True)
