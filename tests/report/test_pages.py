"""What whole pages and shared sets lose, beside the cell that differs in nothing else."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvbench.extras.pages.losses import losses, report_of
from kvbench.records import ResultsFolder, Row
from kvbench.report.formats.emit import emitted
from kvbench.report.selection import NothingSelected
from tests.cells import name_of

WARN = pytest.fail
SNAPKV = {"name": "snapkv", "window": 16, "accepts": ["score", "budget"]}


@pytest.fixture
def folder(cell, results):
    """Makes a folder of cells: their settings of a policy, and how many of 40 prompts they answer."""

    def made(*cells: tuple[dict[str, Any], int], **columns: Any) -> Path:
        rows: list[Sequence[Row]] = []
        described = []
        for settings, right in cells:
            policy = SNAPKV | settings
            description = {"policy": policy, "task": {"name": "ruler/vt"}, "budget": "0.1"}
            label = " ".join(("snapkv", *(f"{name}={value}" for name, value in settings.items())))
            kept = 41 // policy.get("page", 1) * policy.get("page", 1)
            sizes = {"kept_tokens": float(kept), "allocated_bytes": 10 * kept, "task": "ruler/vt"} | columns
            rows.append(cell([1.0] * right + [0.0] * (40 - right), label, cell=name_of(description), **sizes))
            described.append(description)
        place = results(*rows)
        for description in described:
            ResultsFolder(place).write_cell(name_of(description), description)
        return place

    return made


def test_each_set_is_compared_with_that_of_single_heads(folder) -> None:
    place = folder(({}, 36), ({"page": 16}, 12), ({"share": "layer"}, 35), ({"page": 16, "share": "model"}, 36))
    lines = losses(place, WARN, resamples=999)
    sets = [(line.page, line.share, line.difference.difference, line.difference.verdict) for line in lines]
    assert sets == [
        (1, "layer", pytest.approx(-1 / 40), "inconclusive"),
        (16, "head", pytest.approx(-24 / 40), "worse"),
        (16, "model", 0.0, "inconclusive"),
    ]
    paged = lines[1]
    difference = paged.difference
    assert (paged.policy, difference.n, difference.mean_a, difference.mean_b) == ("snapkv", 40, 0.9, 0.3)
    assert (paged.kept_per_head, paged.kept, paged.bytes_per_head, paged.bytes) == (41.0, 32.0, 410.0, 320.0)
    assert difference.low < -0.6 < difference.high < 0
    assert difference.p_holm == pytest.approx(3 * difference.p)


def test_another_setting_is_another_method(folder) -> None:
    place = folder(({"window": 32}, 36), ({"page": 16}, 12), ({"window": 32, "page": 16}, 20))
    assert [line.policy for line in losses(place, WARN)] == ["snapkv window=32"]
    with pytest.raises(NothingSelected, match=r"run both, such as policy\.page=1,16"):
        losses(place, WARN, {"policy": ["snapkv window=32", "snapkv page=16"]})


def test_the_score_of_a_page_is_no_other_method(folder) -> None:
    """By max and by mean, of the same cell; of several without pages, that with the fewest settings."""
    place = folder(({"page_score": "mean"}, 40), ({}, 36), ({"page": 16}, 12), ({"page": 16, "page_score": "mean"}, 6))
    lines = losses(place, WARN)
    assert [(line.page_score, line.difference.mean_a, line.difference.mean_b) for line in lines] == [
        ("max", 0.9, 0.3),
        ("mean", 0.9, 0.15),
    ]


def test_readers_and_programs_get_the_same_lines(folder) -> None:
    place = folder(({}, 36), ({"page": 16}, 12), ({"page": 64, "share": "model", "share_score": "max"}, 36))
    first, second = json.loads(emitted(report_of(place, WARN), "json"))
    assert (first["policy"], first["page"], first["n"], first["verdict"]) == ("snapkv", 16, 40, "worse")
    assert (second["share"], second["share_score"], second["bytes"]) == ("model", "max", 0.0)
    printed = emitted(report_of(place, WARN), "markdown")
    assert "| snapkv | attn | 0.1 | 16 | head | 40 | 90.0 | 30.0 | -60.0 [" in printed and "| 41.0, 32.0 |" in printed
    assert "model max" in printed and "worse" in printed and "over all tables" in printed
