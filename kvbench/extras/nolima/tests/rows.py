"""Needles and books in the schema of NoLiMa, with words of our own."""

import json
from pathlib import Path
from typing import Any

NEEDLES: list[dict[str, Any]] = [
    {
        "id": "0401",
        "system_prompt": "",
        "needle": "Yesterday {CHAR} stood before {1}.",
        "questions": {"onehop": "Who has been to {2}?", "twohop": "Who has been near {3}?"},
        "character_set": ["Ada", "Bo", "Cy"],
        "tests": {
            "T1": {"input_args": ["the old tower", "Pisa", "Italy"]},
            "T2": {"input_args": ["the big clock", "London", "England"]},
        },
    },
    {
        "id": "0402Inv",
        "system_prompt": "",
        "needle": "The one who never eats {1} is Dan.",
        "questions": {"onehop": "Who cannot eat {2}?"},
        "task_template": "Read:\n{haystack}\nNow: {question}",
        "tests": {"T3": {"input_args": ["fish", "salmon"], "gold_answers": ["Dan", "dan"]}},
    },
]
WORDS = ("grass", "sky", "sun", "yellow", "green", "blue", "here", "back", "again", "magic", "number", "hidden", "text")


def write(root: Path) -> None:
    """Five books of 400 lines and a needle set under `root`."""
    (root / "nolima").mkdir(parents=True, exist_ok=True)
    (root / "nolima" / "needle_set.json").write_text(json.dumps(NEEDLES), "utf-8")
    for book in range(1, 6):
        lines = (
            " ".join(WORDS[(book * line + line * word * word) % len(WORDS)] for word in range(3 + (line * book) % 9))
            for line in range(400)
        )
        (root / "nolima" / f"rand_book_{book}.txt").write_text("\n".join(lines), "utf-8")
