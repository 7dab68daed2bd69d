"""Readers: definitions written out, the choices of published code, and bounds."""

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.config.entries import load_entry, options
from kvbench.config.settings import build
from kvbench.extras.readers.oracle_topk import OracleTopK
from kvbench.extras.readers.quest import Quest
from kvbench.extras.readers.top import TopReader
from kvbench.models.decode.holder import Holder
from kvbench.support.errors import UserError
from scripts.golden_readers import drawn
from tests import repository

GOLDEN = json.loads((repository.GOLDEN / "readers.json").read_text("utf-8"))
SPARSE = [name for name in options("reader") if name != "dense"]
CHOICES = ("query_heads", "kv_heads")


def reader_of(name: str, **changed: Any) -> TopReader:
    """A reader as its file is, with other settings."""
    built = build("reader", load_entry("reader", name) | changed)
    assert isinstance(built, TopReader)
    return built


def random_heads(seed: int, held: int, group: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [2, group, 8] and keys [2, held, 8] in float64, whose channels differ in size."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.rand(2, 1, 8, generator=draw, dtype=torch.float64) * 3
    keys = torch.randn(2, held, 8, generator=draw, dtype=torch.float64) * sizes
    return torch.randn(2, group, 8, generator=draw, dtype=torch.float64), keys


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['code']}-{case['reader']}-{case['seed']}")
def test_what_is_read_is_what_published_code_reads(case: dict[str, Any]) -> None:
    query, keys = map(torch.from_numpy, drawn(case["seed"], case))
    queries = query.unflatten(0, (case["kv_heads"], -1))
    read = reader_of(case["reader"], **case["settings"]).read(queries, keys, case["tokens"])
    assert [row.nonzero()[:, 0].tolist() for row in read.flatten(0, 1)] == case["read"]


def naive_scores(reader: TopReader, query: list[float], keys: list[list[float]], prefix: int) -> list[float]:
    """The number of each page for one query, by the definitions."""
    size = reader.page_pairs
    pages = [keys[start : start + size] for start in range(0, len(keys), size)]

    def dot(key: list[float], channels: Any = None) -> float:
        return sum(query[c] * key[c] for c in (range(len(query)) if channels is None else channels))

    if reader.name == "quest":
        bounds = [[(min(k[c] for k in page), max(k[c] for k in page)) for c in range(len(query))] for page in pages]
        return [sum(max(q * low, q * high) for q, (low, high) in zip(query, page, strict=True)) for page in bounds]
    if reader.name == "block_topk":
        return [dot([sum(numbers) / len(page) for numbers in zip(*page, strict=True)]) for page in pages]
    if reader.name == "oracle_topk":
        return [dot(key) for key in keys]
    sizes = [sum(abs(key[c]) for key in keys[:prefix]) for c in range(len(query))]
    if reader.variant == "query_keys":  # type: ignore[attr-defined]
        sizes = [size * abs(q) for size, q in zip(sizes, query, strict=True)]
    channels = sorted(range(len(query)), key=lambda c: -sizes[c])[: reader.channels]  # type: ignore[attr-defined]
    return [dot(key, channels) for key in keys]


@pytest.mark.parametrize("variant", [*SPARSE, "query_keys"])
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    held=st.integers(5, 40),
    budget=st.integers(4, 30),
    sink=st.integers(0, 2),
    recent=st.integers(0, 2),
    selection=st.sampled_from(CHOICES),
)
def test_definitions_written_out(
    variant: str, seed: int, held: int, budget: int, sink: int, recent: int, selection: str
) -> None:
    changed: dict[str, Any] = {"budget": budget, "sink": sink, "recent": recent, "selection": selection}
    name = "double_sparsity" if variant == "query_keys" else variant
    if name == "double_sparsity":
        changed |= {"channels": 3} | ({"variant": variant} if variant == "query_keys" else {})
    if name in ("quest", "block_topk"):
        changed |= {"page": 4, "least_pages": 2}
    reader, (queries, keys), prefix = reader_of(name, **changed), random_heads(seed, held), held - 3
    size = reader.page_pairs
    read = reader.read(queries, keys, prefix)
    for segment in range(2):
        scores = [naive_scores(reader, query.tolist(), keys[segment].tolist(), prefix) for query in queries[segment]]
        if selection == "kv_heads":
            if name == "oracle_topk":
                scores = [torch.tensor(row, dtype=torch.float64).softmax(dim=0).tolist() for row in scores]
            scores = [[sum(column) for column in zip(*scores, strict=True)]] * len(scores)
        for member, row in enumerate(scores):
            always = {pair // size for pair in (*range(sink), *range(held - recent, held))}
            best = sorted(range(len(row)), key=lambda page: (page not in always, -row[page]))
            count = max(budget // size, 2 if size > 1 else 1, len(always)) if budget < held else len(row)
            expected = {page for page in best[:count]}
            actual = {pair // size for pair in read[segment, member].nonzero()[:, 0].tolist()}
            assert actual == expected
            assert read[segment, member].sum() == sum(min(size, held - page * size) for page in expected)


@given(seed=st.integers(0, 10**6), held=st.integers(1, 70), page=st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_no_logit_of_a_page_exceeds_its_bound(seed: int, held: int, page: int) -> None:
    queries, keys = random_heads(seed, held)
    bounds = Quest(page=page).scores(queries, keys, held)
    logits = queries @ keys.mT
    assert bounds.shape[2] == -(-held // page)
    assert (bounds.repeat_interleave(page, dim=2)[..., :held] >= logits - 1e-12 * logits.abs().max()).all()


@pytest.mark.parametrize("selection", CHOICES)
@pytest.mark.parametrize("name", SPARSE)
def test_no_reader_of_as_many_pairs_reads_more_attention_than_the_oracle(name: str, selection: str) -> None:
    queries, keys = random_heads(5, 64)
    weights = (queries @ keys.mT).softmax(dim=-1)
    read = reader_of(name, budget=16, recent=0, selection=selection).read(queries, keys, 60)
    pairs = int(read[0, 0].sum())
    best = OracleTopK(budget=pairs, selection=selection).read(queries, keys, 60)  # type: ignore[arg-type]
    of_reader, of_oracle = ((weights * part).sum(dim=2) for part in (read, best))
    if selection == "kv_heads":
        of_reader, of_oracle = of_reader.sum(dim=1), of_oracle.sum(dim=1)
        assert (read == read[:, :1]).all()
    assert (of_oracle >= of_reader - 1e-12).all()


def test_a_fraction_is_of_what_the_head_holds() -> None:
    reader = reader_of("oracle_topk", budget=0.25)
    for held, pairs in ((2, 1), (10, 3), (40, 10)):
        assert (reader.read(*random_heads(2, held), held).sum(dim=2) == pairs).all()


@pytest.mark.parametrize(
    ("name", "changed", "complaint"),
    [
        ("quest", {"budget": 0}, "reader.budget=0: allowed: KV pairs per head, 1 or more"),
        ("quest", {"budget": 1.5}, "reader.budget=1.5: allowed"),
        ("quest", {"budget": True}, "reader.budget=true: allowed"),
        ("quest", {"budget": 8, "sink": 4, "recent": 5}, "less than the 9 pairs that reader.sink and reader.recent"),
        ("quest", {"page": 0}, "reader.page=0: allowed: 1 to"),
        ("block_topk", {"least_pages": 0}, "reader.least_pages=0: allowed: 1 to"),
        ("double_sparsity", {"channels": 0}, "reader.channels=0: allowed: a number of channels"),
        ("double_sparsity", {"variant": "offline"}, "reader.variant=offline: allowed: 'prompt_keys' or 'query_keys'"),
        ("oracle_topk", {"selection": "heads"}, "reader.selection=heads: allowed: 'query_heads' or 'kv_heads'"),
        ("oracle_topk", {"dense_layers": -1}, "reader.dense_layers=-1: allowed: 0 to"),
    ],
)
def test_what_cannot_be_is_refused(name: str, changed: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as refused:
        reader_of(name, **changed)
    assert complaint in str(refused.value)


def test_a_class_that_is_no_reader_is_refused() -> None:
    with pytest.raises(UserError, match=f"derive it from {Holder.__module__}.Holder"):
        build("reader", {"_target_": "kvbench.eviction.scores.recency.Recency", "name": "recency"})
