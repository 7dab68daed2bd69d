"""Questions and documents in the forms of MMLU and HotpotQA: of our own words, or from copies of both.

A folder with copies has `data/mmlu/{dev,test}/SUBJECT.csv` of HaeChan0305/MLILAB-FedLLM and, as `hotpotqa.json`,
`hotpot_dev_distractor_v1.json` of Rakin061/hotpot at 077eab2, whose 54th row is cut off.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORDS = ("grey", "rope", "late", "stone", "under", "harbor", "seven", "quiet", "letter", "green", "door", "again")
WORDS += ("tin",)
TITLES, SENTENCES = "title", "sentences"


def words(number: int, count: int) -> str:
    """So many words, others for each number."""
    return " ".join(WORDS[(number + place * (number + place)) % len(WORDS)] for place in range(count))


def question(number: int) -> dict[str, Any]:
    """A row of MMLU, with white space of each kind."""
    text = f" What  is {words(number, 5 + number % 9)}\n\tin {{{number}}}?"
    choices = [f"{letter} {words(number + place, 2)}" for place, letter in enumerate("wxyz")]
    return {"question": text, "subject": "", "choices": choices, "answer": number % 4}


def row(number: int) -> dict[str, Any]:
    """A row of HotpotQA: ten documents, one of them in other rows too, of which two are needed."""
    titles = [f"Door {number % 7}", *(f"Rope {number} {place}" for place in range(9))]
    context = {
        TITLES: titles,
        SENTENCES: [[f"{words(len(title) + number % 7, 6).capitalize()}.", f" It is {title}."] for title in titles],
    }
    needed = {TITLES: [titles[2], titles[5], titles[5]], "sent_id": [0, 1, 0]}
    asked = f"Which is {words(number, 4)}?"
    return {"id": str(number), "question": asked, "answer": f"Door {number}", "supporting_facts": needed} | {
        "context": context
    }


def made_up() -> dict[str, list[dict[str, Any]]]:
    """The rows of each file."""
    parts = {
        "hotpotqa_validation": (0, 12),
        "hotpotqa_train_0": (100, 116),
        "hotpotqa_train_1": (110, 124),
    }
    return {
        "mmlu_test": [question(number) for number in range(30)],
        "mmlu_auxiliary_train": [question(number) for number in range(100, 500)],
    } | {name: [row(number) for number in range(*numbers)] for name, numbers in parts.items()}


def copied(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of each file from copies: MMLU's development set and HotpotQA's rows stand for the training sets."""
    hotpotqa = [*_rows((folder / "hotpotqa.json").read_text("utf-8"))]
    return {
        "mmlu_test": [*_questions(folder / "data" / "mmlu" / "test")],
        "mmlu_auxiliary_train": [*_questions(folder / "data" / "mmlu" / "dev")],
        "hotpotqa_validation": hotpotqa,
        "hotpotqa_train_0": hotpotqa[:30],
        "hotpotqa_train_1": hotpotqa[30:],
    }


def write(root: Path, rows: dict[str, list[dict[str, Any]]] | None = None) -> None:
    """Files of these rows under `root`; of made-up ones by default."""
    (root / "ruler_v2").mkdir()
    for name, content in (rows or made_up()).items():
        text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in content)
        (root / "ruler_v2" / f"{name}.jsonl").write_text(text, "utf-8")


def _questions(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                choices = [line[f"choice{place}"] for place in range(4)]
                yield {"question": line["question"], "choices": choices, "answer": int(line["answer"])}


def _rows(text: str) -> Iterator[dict[str, Any]]:
    """The whole rows of a JSON list that is cut off, in the form of the hub."""
    decoder, place = json.JSONDecoder(), text.index("{")
    while True:
        try:
            row, end = decoder.raw_decode(text, place)
        except json.JSONDecodeError:
            return
        facts, context = (list(zip(*row[name], strict=True)) for name in ("supporting_facts", "context"))
        yield {
            "question": row["question"],
            "answer": row["answer"],
            "supporting_facts": {TITLES: list(facts[0])},
            "context": {TITLES: list(context[0]), SENTENCES: list(context[1])},
        }
        place = text.find("{", end)
        if place < 0:
            return
