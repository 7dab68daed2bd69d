import itertools
from dataclasses import fields, replace

import pytest
from hypothesis import given, strategies

from kvbench.report.tables.pivot import arrange
from kvbench.report.tables.summary import Summary, summaries


def layout(block) -> dict:
    """Lines of a block as {labels: {column: mean}}."""
    return {line.labels: {column: cell.mean for column, cell in line.cells.items()} for line in block.lines}


def test_a_line_a_policy_and_score_a_column_a_budget(cell) -> None:
    rows = cell([1.0]) + cell([0.0], budget="0.2") + cell([0.5], "h2o", budget="16") + cell([0.25], score="random")
    (block,) = arrange(summaries(rows))
    assert block.title == {"model": "reference", "task": "ruler/niah_single_1", "context_length": 512}
    assert block.columns == [("0.1",), ("0.2",), ("16",)]
    assert layout(block) == {
        ("h2o", "attn"): {("16",): 0.5},
        ("snapkv", "attn"): {("0.1",): 1.0, ("0.2",): 0.0},
        ("snapkv", "random"): {("0.1",): 0.25},
    }


def test_models_tasks_and_lengths_have_tables_of_their_own(cell) -> None:
    rows = cell([1.0]) + cell([1.0], model="other") + cell([1.0], task="a") + cell([1.0], context_length=1024)
    titles = [tuple(block.title.values()) for block in arrange(summaries(rows))]
    task = "ruler/niah_single_1"
    assert titles == [
        ("other", task, 512),
        ("reference", "a", 512),
        ("reference", task, 512),
        ("reference", task, 1024),
    ]


def test_the_full_cache_is_the_first_line_and_in_every_column(cell) -> None:
    rows = cell([0.5]) + cell([0.5], budget="0.2") + cell([1.0], "full") + cell([0.0], "streaming_llm")
    (block,) = arrange(summaries(rows))
    assert block.columns == [("0.1",), ("0.2",)]
    assert [(line.labels, line.reference) for line in block.lines] == [
        (("full", None), True),
        (("streaming_llm", None), False),
        (("snapkv", "attn"), False),
    ]
    assert layout(block)["full", None] == {("0.1",): 1.0, ("0.2",): 1.0}
    assert len(block.cells(reference=True)) == 1
    other = arrange(summaries(cell([0.5]) + cell([1.0], "full", task="other")))  # no reference there, alone it stays
    assert [layout(block) for block in other] == [
        {("full", None): {("1.0",): 1.0}},
        {("snapkv", "attn"): {("0.1",): 0.5}},
    ]


def test_a_full_cache_has_no_budget_among_labels(cell) -> None:
    rows = cell([0.5]) + cell([1.0], "full") + cell([0.2], "duo_attention", score=None)
    (block,) = arrange(summaries(rows), rows=["policy", "score", "budget"], cols=["task"])
    labels = [("full", None, None), ("duo_attention", None, "0.1"), ("snapkv", "attn", "0.1")]
    assert [line.labels for line in block.lines] == labels


def test_other_lines_and_columns(cell) -> None:
    means = {("snapkv", 512): 0.5, ("snapkv", 1024): 0.25, ("full", 512): 1.0, ("full", 1024): 0.9}
    rows = [row for (policy, length), mean in means.items() for row in cell([mean], policy, context_length=length)]
    (block,) = arrange(summaries(rows), rows=["score"], cols=["context_length"])
    assert block.title == {"model": "reference", "task": "ruler/niah_single_1", "policy": "snapkv", "budget": "0.1"}
    assert layout(block) == {("full",): {(512,): 1.0, (1024,): 0.9}, ("attn",): {(512,): 0.5, (1024,): 0.25}}
    assert block.lines[0].reference
    rows = cell([0.5]) + cell([0.25], score="random", budget="0.2")
    (block,) = arrange(summaries(rows), rows=["policy"], cols=["score", "budget"])
    assert block.columns == [("attn", "0.1"), ("random", "0.2")], "several keys make one column"


def test_a_setting_of_policies_is_a_line_of_one_table(cell) -> None:
    """Labels, which repeat the setting, make no table each."""
    rows = cell([0.5], cell="a") + cell([0.25], "snapkv apply=d2o", cell="b") + cell([1.0], "full", cell="f")
    apply = {"a": {}, "b": {"apply": {"kind": "d2o"}}, "f": {}}
    described = {name: {"policy": {"name": "full" if name == "f" else "snapkv"} | apply[name]} for name in apply}
    (block,) = arrange(summaries(rows), rows=["policy.apply"], cols=["budget"], describe=described.get)
    assert block.title["policy.name"] == "snapkv"
    assert layout(block) == {("full",): {("0.1",): 1.0}, ("drop",): {("0.1",): 0.5}, ("d2o",): {("0.1",): 0.25}}


@pytest.mark.parametrize("key", ["variant", "layout", "schedule", "task_version", "seed"])
def test_lines_are_split_by_what_would_share_a_place(cell, key: str) -> None:
    value, other = (1, 2) if key == "seed" else ("one", "other")
    rows = cell([0.5], **{key: value}) + cell([1.0], **{key: other}) + cell([0.0], "h2o", **{key: value})
    (block,) = arrange(summaries(rows))
    assert block.line_keys == ("policy", "score", key)
    labels = [("h2o", "attn", value), ("snapkv", "attn", value), ("snapkv", "attn", other)]
    assert [line.labels for line in block.lines] == labels
    (block,) = arrange(summaries(cell([0.5], **{key: value}) + cell([1.0], "h2o", **{key: other})))
    assert block.line_keys == ("policy", "score"), "no place is shared"


def test_settings_tell_apart_what_labels_cannot(cell) -> None:
    rows = [
        row for name in ("ab", "cd") for b in ("0.1", "0.2") for row in cell([0.5], budget=b, cell=f"{name}{b[-1]}")
    ]
    described = {"a": {"policy": {"window": 16, "sink": 4}}, "c": {"policy": {"window": 32, "sink": 4}}}
    (block,) = arrange(summaries(rows + cell([1.0], "h2o")), describe=lambda name: described.get(name[0]))
    assert block.line_keys == ("policy", "score", "setting")
    assert [line.labels[1:] for line in block.lines] == [
        ("attn", None),
        ("attn", "policy.window=16"),
        ("attn", "policy.window=32"),
    ]
    assert all(len(line.cells) == 2 for line in block.lines[1:])
    (block,) = arrange(summaries(cell([0.5], cell="ab" * 8) + cell([1.0], cell="cd" * 8) + cell([0.0], "h2o")))
    hashes = [("h2o", "attn", None), ("snapkv", "attn", "ab" * 8), ("snapkv", "attn", "cd" * 8)]
    assert [line.labels for line in block.lines] == hashes, "the hash, where nothing else does"


@pytest.mark.parametrize(
    ("rows", "cols"),
    [("policy,score", "budget"), ("budget", "score"), ("task", "context_length"), ("score,seed", "policy")],
)
def test_no_cell_is_ever_lost(cell, rows: str, cols: str) -> None:
    names = ("policy", "score", "budget", "context_length", "cell")
    combinations = itertools.product(("full", "h2o", "snapkv"), ("attn", "random"), ("0.1", "0.2"), (512, 1024), "ab")
    lines = summaries(
        row
        for values in combinations
        for row in cell([0.5], **dict(zip(names, values, strict=True)) | {"cell": "".join(map(str, values))})
    )
    blocks = arrange(lines, rows.split(","), cols.split(","))
    shown = {cell.cell for block in blocks for line in block.lines for cell in line.cells.values()}
    assert sorted(line.cell for line in lines if line.cell not in shown) == []


@pytest.mark.parametrize(
    ("rows", "cols", "message"),
    [
        (["polcy"], ["budget"], "rows=polcy: there is no key 'polcy'; did you mean policy"),
        (["policy"], ["mean"], "cols=mean: there is no key 'mean'; keys: model task"),
        (["policy"], ["policy"], "'policy' is named twice"),
        ([], ["budget"], "rows= has no key"),
    ],
)
def test_wrong_keys_are_named(rows: list[str], cols: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        arrange([], rows, cols)


NUMBERS = strategies.integers(0, 2)
SUMMARY = Summary(**dict.fromkeys((field.name for field in fields(Summary)), None) | {"policy": "snapkv", "n": 1})
SETTINGS = ("model.dtype", "task.max_new_tokens", "policy.window", "score.norm", "reader.name", "schedule.block")


DESCRIBED = strategies.tuples(
    strategies.sampled_from(("0.1", "0.2")), strategies.dictionaries(strategies.sampled_from(SETTINGS), NUMBERS)
)


@given(strategies.lists(DESCRIBED, min_size=2, max_size=5, unique_by=repr))
def test_cells_of_a_line_differ_in_its_column_alone(described) -> None:
    """For any settings of any group: equal labels with other descriptions never make one line."""
    descriptions = {
        f"{i:016x}": {"budget": budget, "policy": {"name": "snapkv"}} | others
        for i, (budget, others) in enumerate(described)
    }
    lines = [replace(SUMMARY, cell=name, budget=each["budget"]) for name, each in descriptions.items()]
    blocks = arrange(lines, describe=descriptions.get)
    shown = [[descriptions[c.cell] for c in line.cells.values()] for block in blocks for line in block.lines]
    assert sum(map(len, shown)) == len(lines)
    for line in shown:
        assert len({repr(sorted((each | {"budget": None}).items(), key=str)) for each in line}) == 1
