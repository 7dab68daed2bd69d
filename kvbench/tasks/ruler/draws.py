"""How RULER draws what it hides: scripts/data/synthetic/niah.py at NVIDIA/RULER c3f5e3b, the same in both eras."""

import random
import uuid
from collections.abc import Callable

from kvbench.tasks.ruler.words import keys


def _number(rng: random.Random) -> str:
    return str(rng.randint(10**6, 10**7 - 1))


def _word(rng: random.Random) -> str:
    return rng.choice(keys())


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


DRAWS: dict[str, Callable[[random.Random], str]] = {"numbers": _number, "words": _word, "uuids": _uuid}
"""What keys and values can be, and how one is drawn."""
