"""`kvbench probe`: every probe on a tiny model, its tables and pictures, resuming, and what it refuses."""

import csv
import io
import json
from pathlib import Path

import pandas
import pytest

from kvbench.config.entries import options
from kvbench.extras.probes import run as probe_run
from kvbench.extras.probes.numbers import COLUMNS
from tests.cli.conftest import Command

SMALL = {
    "oracle_recall": ("probe.windows=1,8", "probe.recents=[0,4]", "score=attn,obcache_joint"),
    "eviction_error": ("score=attn", "probe.output=layer"),
    "rank_correlation": ("score=fastcaote", "probe.against=caote"),
    "layer_loss": ("policy=ada_snapkv,cake", "budget=64"),
    "set_error": ("score=attn", "budget=0.5"),
    "head_scores": (),
}
"""Settings of a short run of every probe."""
PNG = b"\x89PNG"


SLOW = ("layer_loss", "set_error")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in options("probe")]
)
def test_a_probe_measures_prints_draws_and_resumes(
    kvbench: Command, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    arguments = (name, *tiny, "task.samples=2", *SMALL[name])
    first = kvbench("probe", *arguments, "--plot", "seen.png")
    assert first.code == 0, first.err
    assert first.out.startswith(name) and "over n = 2 samples" in first.out
    assert (tmp_path / "seen.png").read_bytes().startswith(PNG)
    frame = pandas.concat(pandas.read_parquet(path) for path in (tmp_path / "out" / "probes").glob("*.parquet"))
    assert list(frame.columns) == list(COLUMNS) and set(frame["sample"]) == {0, 1}
    assert set(frame["probe"]) == {name} and set(frame["layer"]) == {0, 1} and frame["value"].notna().any()
    assert frame["cell"].nunique() == len(list((tmp_path / "out" / "cells").iterdir()))
    monkeypatch.setattr(probe_run, "load", lambda _: pytest.fail("a finished probe loads no model"))
    again = kvbench("probe", *arguments, "--format", "csv", "--out", "said.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "said.csv").read_text())))
    assert "wrote said.csv" in again.err
    assert again.code == 0 and "are in out" in again.err
    assert {"n", "mean", "low", "high", "quantity"} <= set(lines[0]) and all(line["n"] == "2" for line in lines)
    by_sample = json.loads(kvbench("probe", *arguments, "--format", "json", "--by", "sample").out)
    assert {line["sample"] for line in by_sample} == {0, 1} and all(line["low"] is None for line in by_sample)


def test_more_samples_go_on_where_fewer_stopped(kvbench: Command, tiny: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ("head_scores", *(word for word in tiny if word != "results.dir=out"), "score=attn", "policy=plain")
    kvbench("probe", *arguments, "task.samples=1", "--results", "other")
    (path,) = (tmp_path / "other" / "probes").iterdir()
    before = path.stat().st_mtime_ns
    more = kvbench("probe", *arguments, "task.samples=2", "--results", "other", "--format", "markdown")
    assert "1 measurement to run (1 are there already)" in more.err and "| layer |" in more.out
    assert path.stat().st_mtime_ns == before and len(list((tmp_path / "other" / "probes").iterdir())) == 2
    fewer = kvbench("probe", *arguments, "task.samples=1", "--results", "other", "--out", "table.txt")
    assert fewer.out == "" and "n = 1 samples" in (tmp_path / "table.txt").read_text()


def test_a_sample_that_fails_says_why_and_is_tried_again_when_asked(
    kvbench: Command, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ("oracle_recall", *tiny, "task.samples=1", "score=attn", "budget=0.01", "probe.windows=4")
    for flags, measured in (((), True), ((), False), (("--retry-errors",), True)):
        finished = kvbench("probe", *arguments, *flags)
        assert finished.code == 4 and "1 failed: budget=0.01 keeps" in finished.out
        assert ("to run" in finished.err) is measured
    assert len(list((tmp_path / "out" / "probes").iterdir())) == 1


def test_what_is_usual_gives_way_to_what_is_named(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """The usual layout of oracle_recall goes with the usual policy; another policy has its own."""
    arguments = ("probe", "oracle_recall", *tiny, "task.samples=1", "probe.windows=4", "score=attn", "--format", "csv")
    heads = [kvbench(*arguments, *more, "--by", "head") for more in ((), ("policy=snapkv",))]
    assert [len(list(csv.DictReader(io.StringIO(finished.out)))) for finished in heads] == [4, 2]


def test_the_question_is_read_after_the_cut(kvbench: Command, tiny: tuple[str, ...]) -> None:
    finished = kvbench("probe", "set_error", *tiny, "task.samples=1", "schedule.evict_after=context", "score=attn")
    assert finished.code == 0 and "schedule context" in finished.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("oracle_recall", "probe.window=4"), "unknown setting probe.window: did you mean probe.windows?"),
        (("oracle_recall", "probe.windows=four"), "probe.windows"),
        (("oracle_recall", "probe.output=logits"), "probe.output=logits"),
        (("oracle_recall", "policy=full"), "policy full takes no score"),
        (("oracle_recall", "score=cake"), "policy.window=1"),
        (("rank_correlation", "probe.against=caot"), "unknown probe.against caot: did you mean caote?"),
        (("layer_loss", "probe.at=prompt,decode"), "name one"),
        (("layer_loss", "schedule.prefill_block=64"), "schedule.prefill_block=null"),
        (("layer_loss", "--by", "layr"), "did you mean layer?"),
        (("layer_loss", "--plot", "loss.gif"), "a plot goes to a file"),
        (("layer_loss", "results.dir=a", "--results", "b"), "give only one of them"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_arguments_are_refused_in_one_line(
    kvbench: Command, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    finished = kvbench("probe", *arguments)
    assert finished.code == 2 and words in finished.err and finished.err.count("\n") == 1, finished.err
    assert list(tmp_path.iterdir()) == []


def test_layers_with_windows_of_their_own_have_no_numbers(kvbench: Command) -> None:
    """A shape model whose every other layer is local."""
    arguments = ("set_error", "model=shape/tiny-gemma2", "task.samples=1", "score=attn", "budget=0.5")
    finished = kvbench("probe", *arguments, "--format", "csv")
    layers = {line["layer"] for line in csv.DictReader(io.StringIO(finished.out))}
    assert finished.code == 0 and layers == {"1", "3"}, finished.err


def test_a_text_without_a_question_is_refused(kvbench: Command, tmp_path: Path) -> None:
    (tmp_path / "data" / "pg19").mkdir(parents=True)
    (tmp_path / "data" / "pg19" / "1.txt").write_text("It was a dark night. " * 200)
    settings = ("task=pg19", "schedule.decode_every=1", f"data.root={tmp_path / 'data'}")
    finished = kvbench("probe", "set_error", *settings)
    assert finished.code == 2 and "task pg19 has no question" in finished.err and finished.err.count("\n") == 1, (
        finished.err
    )


def test_a_table_says_that_its_policies_differ_in_windows(kvbench: Command, tiny: tuple[str, ...]) -> None:
    words = ("layer_loss", *tiny, "policy=ada_snapkv,h2o_obcache", "score=attn", "budget=0.5", "task.samples=1")
    assert "cells differ" not in kvbench("probe", *words, "protocol=common").out
    other = kvbench("probe", *words, "--plot", "seen.png")
    assert "; cells differ in window 16 (h2o_obcache), 32 (ada_snapkv)" in " ".join(other.out.split()), other.err
