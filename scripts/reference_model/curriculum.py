"""The stages of training.

Copying first, then needles whose value moves away from the key, then RULER's sentences, then longer prompts.

A stage ends when the share of wholly right answers over its last batches passes its gate (or at its last step), so
what is learned decides the pace.
"""

from dataclasses import dataclass
from typing import Any

from .data import Mix, Spaced
from .families import Blend


@dataclass(frozen=True)
class Stage:
    """One stage: what is drawn, how much of it a step, when it is passed."""

    name: str
    batch: int
    steps: int
    gate: float = 0.9
    mix: Mix | None = None
    copy_tokens: int = 64
    copy_batch: int = 32
    copy_share: float = 0.12
    text_share: float = 0.0
    spaced: Spaced | None = None
    spaced_batch: int = 32
    spaced_share: float = 0.0
    evicted_share: float = 0.0
    judged: str = "needles"
    even: bool = True
    shortest: float = 0.5
    rate: float = 1.0
    decay: bool = False
    blend: Blend | None = None


FIRST: tuple[Stage, ...] = (
    Stage("copy", 48, 2500, copy_share=1.0, copy_batch=48, judged="copying"),
    Stage("pairs", 24, 800, 0.9, Mix((0, 0, 1), 120, 4, 5, noise_share=0), copy_share=0.25, copy_tokens=96, even=False),
    Stage(
        "apart",
        20,
        670,
        0.9,
        Mix((0, 1, 2, 4), 140, 6, 6, noise_share=0.35),
        copy_share=0.12,
        copy_tokens=96,
        spaced=Spaced(2, 2, 100),
        spaced_share=0.5,
        judged="spaced",
    ),
    Stage(
        "ruler short",
        14,
        700,
        0.92,
        Mix((0, 3, 4, 4, 4), 224, 5, 8, noise_share=0.3),
        copy_share=0.08,
        copy_tokens=128,
        copy_batch=20,
    ),
    Stage(
        "ruler",
        8,
        700,
        0.95,
        Mix((4,), 400, 5, 14, 0.3, 0.07, 0.04, 0.2, 0.02),
        copy_share=0.08,
        copy_tokens=192,
        copy_batch=16,
        text_share=0.04,
        rate=0.6,
    ),
    Stage(
        "long",
        4,
        323,  # stopped early: its rate fell from 0.6 to 0.4 of the base
        2.0,
        Mix((4,), 900, 6, 40, 0.33, 0.08, 0.06, 0.3, 0.03),
        copy_share=0.05,
        copy_tokens=256,
        copy_batch=12,
        text_share=0.03,
        shortest=0.25,
        rate=0.5,
    ),
    Stage(
        "evicted",
        4,
        800,
        2.0,
        Mix((4,), 800, 6, 40, 0.35, 0.06, 0.05, 0.3, 0.03),
        copy_share=0.05,
        copy_tokens=256,
        copy_batch=12,
        text_share=0.02,
        evicted_share=0.3,
        shortest=0.25,
        rate=0.5,
        decay=True,
    ),
)


def _families(
    name: str, steps: int, shares: str, shortest: int, longest: int, rate: float, text_weight: float, **more
) -> Stage:
    """A stage of families; `shares` as `single 0.3, values 0.2`."""
    pairs = tuple((family, float(share)) for family, share in (part.split() for part in shares.split(", ")))
    blended = {
        key: more.pop(key) for key in ("step_tokens", "questions", "jump_share", "hays", "essay_weight") if key in more
    }
    blended: dict[str, Any] = {"essay_weight": text_weight} | blended
    blend = Blend(pairs, shortest, longest, text_weight=text_weight, **blended)
    return Stage(name, 0, steps, 2.0, judged="families", rate=rate, blend=blend, **more)


COPIES = {"copy_share": 0.04, "copy_tokens": 192, "copy_batch": 20}
NEEDLES = (("essay", 0.3), ("noise", 0.2), ("needle", 0.5))
SECOND: tuple[Stage, ...] = (
    _families(
        "families short",
        280,
        "single 0.3, values 0.25, queries 0.22, tracking 0.1, text 0.13",
        256,
        512,
        rate=0.5,
        text_weight=0.04,
        **COPIES,
    ),
    _families(
        "families faster",
        350,
        "single 0.2, values 0.3, queries 0.22, tracking 0.15, text 0.13",
        256,
        512,
        rate=0.75,
        text_weight=0.08,
        **COPIES,
    ),
    _families(
        "families, less text",
        410,
        "single 0.25, values 0.3, queries 0.2, tracking 0.15, text 0.1",
        224,
        512,
        rate=0.6,
        text_weight=0.015,
        **COPIES,
    ),
    _families(
        "families, no essay text",
        275,
        "single 0.38, values 0.23, queries 0.17, tracking 0.15, text 0.07",
        224,
        512,
        rate=0.6,
        text_weight=0.04,
        essay_weight=0.0,
        questions=9,
        hays=NEEDLES,
        **COPIES,
    ),
    _families(
        "families to 1K",
        300,
        "single 0.43, values 0.22, queries 0.22, tracking 0.05, text 0.08",
        224,
        1024,
        rate=0.6,
        text_weight=0.04,
        essay_weight=0.0,
        questions=12,
        hays=NEEDLES,
        **COPIES,
    ),
    _families(
        "families to 2.5K",
        720,
        "single 0.47, values 0.15, queries 0.22, tracking 0.03, text 0.13",
        256,
        2560,
        rate=0.6,
        text_weight=0.05,
        essay_weight=0.001,
        questions=12,
        hays=NEEDLES,
        decay=True,
        evicted_share=0.08,
        **COPIES,
    ),
)

TINY: tuple[Stage, ...] = (
    Stage("copy", 4, 4, 2.0, copy_share=1.0, copy_tokens=32, copy_batch=4, judged="copying"),
    Stage(
        "ruler",
        2,
        8,
        2.0,
        Mix((0, 4), 160, 2, 3, 0.3, 0, 0.2, 0.3, 0.1),
        copy_share=0.3,
        copy_tokens=32,
        copy_batch=2,
        spaced=Spaced(1, 1, 40),
        spaced_batch=2,
        spaced_share=0.3,
        evicted_share=0.2,
    ),
    _families(
        "families",
        5,
        "single 0.3, values 0.2, queries 0.2, tracking 0.2, text 0.1",
        120,
        200,
        rate=0.5,
        text_weight=0.04,
        step_tokens=400,
        evicted_share=0.2,
        decay=True,
    ),
)
