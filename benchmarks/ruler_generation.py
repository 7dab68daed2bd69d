"""Seconds to make RULER's prompts, all thirteen tasks, with the tokenizer of the golden rows.

    python benchmarks/ruler_generation.py [--samples 500] [--context-length 4096] [--era 2026] [--root FOLDER]

First, tasks that read no data must make the golden rows. Then every task makes its samples in five parts; printed are
the seconds for all of them, the fastest and slowest part, and the seconds to make them again, as a run does: it
checks all samples before its model is loaded. `--root` is a data.root; without one essays, SQuAD and
HotpotQA are stand-ins of their size, made up in a temporary folder. Answers of a run are not made: no model is loaded.
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from transformers import AutoTokenizer

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.models.prompts.tokens import TokensOf
from kvbench.tasks.ruler.task import RulerTask

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "ruler"
PARTS = 5


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=500)
    parser.add_argument("--context-length", type=int, default=4096)
    parser.add_argument("--era", default="2026")
    parser.add_argument("--root")
    options = parser.parse_args()
    tokens = TokensOf(AutoTokenizer.from_pretrained(GOLDEN / "tokenizer"))
    with tempfile.TemporaryDirectory() as made_up:
        root = options.root or stand_ins(Path(made_up))
        different = [name for name in names() if not agrees(name, tokens, root)]
        if different:
            sys.exit(f"not the golden rows: {', '.join(different)}: nothing to time")
        print(
            f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
            f"{options.samples} samples of {options.context_length} tokens, era {options.era}, "
            f"{'data of ' + options.root if options.root else 'stand-ins for essays and questions'}"
        )
        for name in names():
            fields = {"context_length": options.context_length, "era": options.era, "samples": options.samples}
            seconds, again = (timed(task(name, root, **fields), tokens) for _ in range(2))
            spread = f"{min(seconds):.2f} to {max(seconds):.2f} a part"
            print(f"{name:<16} {sum(seconds):7.1f} s   ({spread}); again {sum(again):5.1f} s", flush=True)


def names() -> list[str]:
    """Return the names of RULER's thirteen tasks."""
    return sorted(
        cell.task.name.removeprefix("ruler/") for cell in map(CellBuilder().cell, combinations(parse(["task=ruler"])))
    )


def task(name: str, root: str, **fields: object) -> RulerTask:
    """Return a task with some settings replaced."""
    words = [f"task=ruler/{name}", f"data.root={root}", *(f"task.{field}={value}" for field, value in fields.items())]
    (tree,) = combinations(parse(words))
    task = CellBuilder().cell(tree).task
    assert isinstance(task, RulerTask)
    return task


def agrees(name: str, tokens: TokensOf, root: str) -> bool:
    """Whether a task makes its golden rows, as far as it has any."""
    for file in GOLDEN.glob(f"era*/{name}.jsonl"):
        era, length = file.parent.name.removeprefix("era").split("_")
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        samples = task(name, root, era=era, context_length=int(length)).generate(tokens, range(len(rows)))
        if [sample.prompt for sample in samples] != [row["input"] + row.get("answer_prefix", "") for row in rows]:
            return False
    return True


def timed(task: RulerTask, tokens: TokensOf) -> list[float]:
    """Seconds of each part; the first has the search for the size in it."""
    samples, seconds = task.generate(tokens, range(task.samples)), []
    for _ in range(PARTS):
        start = time.perf_counter()
        for _ in islice(samples, -(-task.samples // PARTS)):
            pass
        seconds.append(time.perf_counter() - start)
    return seconds


def stand_ins(root: Path) -> str:
    """Made-up essays (112,000 words), SQuAD (1200 paragraphs) and HotpotQA (7400 questions of ten documents)."""
    words = text(random.Random(0))
    (root / "paul_graham_essays").mkdir()
    (root / "paul_graham_essays" / "one.txt").write_text(" ".join(islice(words, 112_000)), encoding="utf-8")
    (root / "ruler").mkdir()
    articles = [{"paragraphs": [paragraph(words) for _ in range(34)]} for _ in range(35)]
    (root / "ruler" / "squad.json").write_text(json.dumps({"data": articles}), encoding="utf-8")
    questions = [{"question": "Which?", "answer": "it", "context": documents(words)} for _ in range(7400)]
    (root / "ruler" / "hotpotqa.json").write_text(json.dumps(questions), encoding="utf-8")
    return str(root)


def text(rng: random.Random) -> Iterator[str]:
    """Words of English frequency, a full stop after every eighteenth on average."""
    common = (
        "the",
        "of",
        "and",
        "to",
        "in",
        "is",
        "that",
        "it",
        "was",
        "for",
        "on",
        "are",
        "as",
        "with",
        "his",
        "they",
    )
    rare = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(4, 9))) for _ in range(3000)]
    while True:
        yield rng.choice(common if rng.random() < 0.45 else rare) + ("." if rng.random() < 1 / 18 else "")


def documents(words: Iterator[str]) -> list[list[object]]:
    """The ten titles with sentences of a question of HotpotQA."""
    return [[" ".join(islice(words, 3)), [" ".join(islice(words, 90))]] for _ in range(10)]


def paragraph(words: Iterator[str]) -> dict[str, object]:
    """A paragraph of SQuAD's length with five questions."""
    question = {"question": "What is it?", "is_impossible": False, "answers": [{"text": "it"}]}
    return {"context": " ".join(islice(words, 120)), "qas": [question] * 5}


if __name__ == "__main__":
    main()
