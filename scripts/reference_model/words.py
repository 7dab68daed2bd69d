"""The needle words of RULER, and the fifth of them that the model never sees while training.

RULER draws its keys as `adjective-noun` from the lists of wonderwords 2.2.0. The lists are written into the training
folder, so that a machine without that package can resume or repeat a run from the folder alone.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_SHARE = 0.2
WORDS_FILE = "words.json"


@dataclass(frozen=True)
class Words:
    """Adjectives and nouns, sorted; the held-out ones are the evaluation's alone."""

    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    held_out: frozenset[str]

    @classmethod
    def of(cls, adjectives: list[str], nouns: list[str]) -> "Words":
        """Hold out the same fifth for the same lists, whatever the training seed."""
        everything = sorted({*adjectives, *nouns})
        held_out = frozenset(random.Random("held-out words").sample(everything, int(HELD_OUT_SHARE * len(everything))))
        return cls(tuple(sorted(set(adjectives))), tuple(sorted(set(nouns))), held_out)

    @property
    def trained(self) -> tuple[list[str], list[str]]:
        """Adjectives and nouns that training may use."""
        return (
            [word for word in self.adjectives if word not in self.held_out],
            [word for word in self.nouns if word not in self.held_out],
        )


def load_words(folder: Path, file: Path | None) -> Words:
    """Read `file`, else the folder's words.json, else wonderwords; write words.json into the folder.

    Raises:
        ValueError: neither a file nor wonderwords is there.
    """
    source = file or (folder / WORDS_FILE)
    if source.exists():
        lists = json.loads(source.read_text(encoding="utf-8"))
    elif file is not None:
        raise ValueError(
            f"--words={file} does not exist; leave it out to take the lists of the installed wonderwords==2.2.0"
        )
    else:
        lists = _wonderwords()
    target = folder / WORDS_FILE
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(lists), encoding="utf-8")
    return Words.of(lists["adjectives"], lists["nouns"])


def _wonderwords() -> dict[str, list[str]]:
    try:
        import wonderwords
    except ImportError:
        raise ValueError(
            "no word lists: install wonderwords==2.2.0 or pass --words FILE (a words.json of an earlier run)"
        ) from None
    generator = wonderwords.RandomWord()
    lists = generator._categories  # the package offers no public way to read a whole list
    return {"adjectives": list(lists["adjective"]), "nouns": list(lists["noun"])}
