"""`kvbench heads`: a table found on one task, kept in a file, and used on another."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kvbench.extras.heads.triattention import read_statistics
from tests.cli.conftest import Command, rows_of
from tests.embedded import KV_HEADS, LAYERS

READ = ("task=ruler/niah_single_1", "task.context_length=512", "task.max_new_tokens=2", "score.chunk=190")


@pytest.fixture
def model(tiny_model: Path) -> tuple[str, ...]:
    """The tiny model: two layers of two KV heads."""
    return ("model=hf", f"model.path={tiny_model}", "model.dtype=float32")


def table(name: str) -> np.ndarray:
    return np.array(json.loads(Path(name).read_text())["scores"])


def test_a_table_of_the_same_context_keeps_the_same_heads(kvbench: Command, model: tuple[str, ...]) -> None:
    """KVzip by head, from the context at hand and from a file: one decision."""
    result = kvbench("heads", *model, *READ, "task.samples=1", "--output", "heads.json")
    assert result.code == 0 and "heads.json: 2 layers of 2 KV heads of model" in result.err
    run = ("run", *model, *READ, "policy=kvzip_head", "task.samples=1", "budget=0.3,0.6,0.8")
    assert kvbench(*run, "results.dir=own").code == 0
    reading = [word for word in run if word != "score.chunk=190"]
    assert kvbench(*reading, "score=head_table", "score.path=heads.json", "results.dir=read").code == 0
    own, read = (sorted(row.kept_sha256 or "" for row in rows_of(Path(name))) for name in ("own", "read"))
    assert own == read and len(set(own)) == 3


def test_samples_and_tasks_are_taken_together(kvbench: Command, model: tuple[str, ...]) -> None:
    """The largest score of any context; numbers alone in .tsv."""
    for name, words in {
        "one.json": ("task.samples=1",),
        "two.json": ("task.samples=2",),
        "fwe.json": ("task=ruler/fwe", "task.samples=1"),
        "both.json": ("task=ruler/niah_single_1,ruler/fwe", "task.samples=1"),
        "both.tsv": ("task=ruler/niah_single_1,ruler/fwe", "task.samples=1"),
    }.items():
        assert kvbench("heads", *model, *READ, *words, "--output", name).code == 0
    one_sample, two_samples, two_tasks = table("one.json"), table("two.json"), table("both.json")
    assert (two_samples >= one_sample).all() and (two_samples > one_sample).any()
    assert (two_tasks == np.maximum(one_sample, table("fwe.json"))).all()
    assert (np.loadtxt("both.tsv", delimiter="\t") == two_tasks).all()
    source = json.loads(Path("both.json").read_text())["source"]
    assert source["contexts"] == 2 and source["score"]["chunk"] == 190
    assert [task["name"] for task in source["tasks"]] == ["ruler/niah_single_1", "ruler/fwe"]


def test_a_table_is_for_the_model_it_was_made_with(
    kvbench: Command, model: tuple[str, ...], stopping_model: Path
) -> None:
    """The other model has the same shape and other files; the text form does not say whose it is."""
    for name in ("heads.json", "heads.tsv"):
        assert kvbench("heads", *model, *READ, "task.samples=1", "--output", name).code == 0
    other = ("run", "model=hf", f"model.path={stopping_model}", "policy=duo_attention", "policy.recent=4", "budget=0.5")
    refused = kvbench(*other, "task.samples=1", "score.path=heads.json")
    assert refused.code == 2 and "of this one" in refused.err and not list(Path("results").glob("*/rows/*"))
    assert kvbench(*other, "task.samples=1", "task.max_new_tokens=2", "score.path=heads.tsv").code == 0


def test_statistics_of_queries_are_sums_over_all_tokens(
    kvbench: Command, model: tuple[str, ...], stopping_model: Path
) -> None:
    """Two prompts are the mean of each, by tokens; a policy reads the file, for the model that it names alone."""
    read = (*READ[:-1], "--queries")
    result = kvbench("heads", *model, *read, "task.samples=1", "--output", "one.safetensors")
    assert result.code == 0 and "one.safetensors: 2 layers of 4 query heads of model" in result.err, result.err
    for name, words in {"two": ("task.samples=2",), "fwe": ("task=ruler/fwe", "task.samples=1")}.items():
        assert kvbench("heads", *model, *read, *words, "--output", f"{name}.safetensors").code == 0
    both = ("task=ruler/niah_single_1,ruler/fwe", "task.samples=1", "--output", "both.safetensors")
    assert kvbench("heads", *model, *read, *both).code == 0
    one_prompt, two_prompts, other, joint = (
        read_statistics(f"{name}.safetensors") for name in ("one", "two", "fwe", "both")
    )
    assert (two_prompts.source["prompts"], joint.source["prompts"]) == (2, 2)
    assert not torch.equal(two_prompts.mean, one_prompt.mean)
    counts = one_prompt.source["tokens"], other.source["tokens"]
    assert sum(counts) == joint.source["tokens"]
    for name in ("mean", "size"):
        parts = [count * getattr(each, name) for count, each in zip(counts, (one_prompt, other), strict=True)]
        assert torch.allclose(getattr(joint, name), torch.stack(parts).sum(dim=0) / sum(counts), atol=1e-5)
    assert (one_prompt.size > one_prompt.mean.abs()).all() and (one_prompt.frequencies[:, 0] == 1).all()
    run = ("run", *READ[:-1], "policy=triattention", "task.samples=1", "budget=40", "schedule.decode_every=1")
    assert kvbench(*run, *model, "score.statistics=two.safetensors", "results.dir=rows").code == 0
    assert [row.error for row in rows_of(Path("rows"))] == [None]
    refused = kvbench(*run, "model=hf", f"model.path={stopping_model}", "score.statistics=two.safetensors")
    assert refused.code == 2 and "not of this one" in refused.err
    alone = kvbench("plan", *model, "policy=triattention")
    assert alone.code == 2 and "add score.statistics=FILE with query statistics (kvbench heads" in alone.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("score=attn",), "heads takes no score"),
        (("schedule.evict_after=prompt",), "heads takes no schedule.evict_after"),
        (("score.chunk=10,20",), "one value of each score setting"),
        (("--queries", "score.chunk=10"), "heads takes no score.chunk: it reads complete prompts and evicts nothing"),
    ],
    ids=" ".join,
)
def test_what_a_table_cannot_be_made_of_is_refused(
    kvbench: Command, model: tuple[str, ...], words: tuple[str, ...], why: str
) -> None:
    refused = kvbench("heads", *model, *words, "--output", "heads.json")
    assert refused.code == 2 and why in refused.err and not Path("heads.json").exists()


def test_a_policy_by_table_asks_for_one(kvbench: Command, model: tuple[str, ...]) -> None:
    """Matched by a pattern alone it is refused; beside others it is left out, which is said."""
    alone = kvbench("plan", *model, "policy=duo_*")
    assert alone.code == 2 and "score.path has no default" in alone.err
    many = kvbench("plan", *model, "policy=duo_*,tov*")
    assert many.code == 0 and many.out.count("tova_obcache") == 1 and "duo_attention" not in many.out
    assert "left out score head_table on duo_attention: score.path has no default" in many.err


ANSWERED = ("task=ruler/niah_single_1", "task.context_length=256", "task.max_new_tokens=6", "task.samples=2")


def test_a_budget_table_is_written_and_read(kvbench: Command) -> None:
    """And other settings that make no sense for it are refused."""
    result = kvbench("heads", *ANSWERED, "score=key_diff", "policy.recent=8", "--output", "budgets.npy")
    assert result.code == 0 and f"budgets.npy: {LAYERS} layers of {KV_HEADS} KV heads of model reference" in result.err
    table = np.load("budgets.npy")
    assert table.shape == (99, LAYERS, KV_HEADS)
    assert table[:90].mean(axis=(1, 2)) == pytest.approx(np.arange(1, 91) / 100, abs=0.01)
    run = ("run", *ANSWERED, "policy=lukv", "policy.layers.path=budgets.npy", "score=key_diff", "budget=0.3")
    assert kvbench(*run, "results.dir=rows").code == 0
    assert len(rows_of(Path("rows"))) == 2
    for word in ("budget=0.2", "policy=lukv", "schedule.decode_every=4"):
        refused = kvbench("heads", *ANSWERED, word, "--output", "budgets.npy")
        assert refused.code == 2 and f"heads takes no {word.split('=')[0]}: it reads answers" in refused.err
    refused = kvbench("heads", *ANSWERED, "score=key_diff,key_norm", "--output", "budgets.npy")
    assert refused.code == 2 and "heads makes one table" in refused.err
    short = kvbench("heads", *ANSWERED[:2], "task.samples=1", "task.max_new_tokens=1", "--output", "budgets.npy")
    assert short.code == 2 and "an answer of one token attends to nothing" in short.err
