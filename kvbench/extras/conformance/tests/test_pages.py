"""Made-up pages and shared sets against the contract written down a second time."""

import random
from pathlib import Path
from typing import Any

import pytest

from kvbench.config.entries import step_settings
from kvbench.extras.conformance.golden import Case, check, load
from kvbench.extras.conformance.tests.cases import OF_SETS
from kvbench.extras.conformance.tests.naive_pages import expected_pages
from kvbench.extras.conformance.tests.test_naive import made_up

EVEN = {"heads": {"kind": "uniform"}, "layers": {"kind": "uniform"}, "variant": "paper"}


def with_sets(seed: int) -> Case:
    """A made-up case with a page or a share, and a budget of a few pages at least."""
    draw, case = random.Random(seed), made_up(seed)
    case.spec.update(page=draw.choice([1, 2, 5, 8]), page_score=draw.choice(["max", "mean"]))
    if share := draw.choice([None, "layer", "model"]):
        case.spec.update(share=share, share_score=draw.choice(["mean", "max"]), **EVEN)
    page, tokens = case.spec["page"], case.shape["tokens"]
    least = case.spec["sink"] + case.spec["recent"] + 3 * page
    case.spec["budget_tokens"] = draw.randint(min(least, tokens - 1), tokens - 1)
    scores, lengths, kept = expected_pages(case.spec, *(case.arrays[name] for name in ("query", "key", "value")))
    case.arrays.update(scores=scores, lengths=lengths, kept=kept)
    case.spec["total_pairs"] = int(lengths.sum())
    return case


@pytest.mark.parametrize("seed", range(1000, 1030))
def test_a_made_up_case_matches(seed: int) -> None:
    case = with_sets(seed)
    assert check(case).problem is None, case.spec


@pytest.mark.parametrize("path", OF_SETS, ids=lambda path: path.stem)
def test_every_setting_of_a_golden_case_decides(path: Path) -> None:
    """With another value of one of its fields the same arrays do not match."""
    others: dict[Any, Any] = {"mean": "max", "max": "mean", "layer": "head", "model": "layer"}
    spec = load(path).spec
    for field in step_settings():
        if field not in spec:
            continue
        case = load(path)
        case.spec[field] = others.get(spec[field], 1)
        assert check(case).problem is not None, field


def test_sets_belong_to_a_single_eviction() -> None:
    case = load(OF_SETS[0])
    case.spec.update(kind="decode", schedule={"steps": 1, "state": "overwrite"})
    assert "field page is not supported in a case of kind decode" in str(check(case).problem)
