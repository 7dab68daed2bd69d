"""Cells of a sweep share their parts; each is what it would be if it were asked for alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml

from kvbench.config import cells, compose
from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.entries import parsed
from kvbench.config.overrides import format_value, parse
from kvbench.eviction.scores.kvzip import KVzip
from kvbench.run.cell import Cell
from kvbench.run.memory import token_bytes
from kvbench.support.errors import UserError

SWEEP = (
    "policy=snapkv,streaming_llm",
    "score=random,attn,caote",
    "policy.window=8,16",
    "budget=0.1,32",
    "seed=1,2",
    "task.context_length=512,1024",
    "schedule.decode_every=null,4",
)


def cells_of(arguments: Sequence[str]) -> list[Cell]:
    built = CellBuilder()
    return [built.cell(tree) for tree in combinations(parse(arguments))]


def test_a_sweep_has_the_cells_of_its_combinations() -> None:
    """Interpolations too: seeds reach tasks and the score that draws, budgets that a window is made of."""
    together = cells_of(SWEEP)
    assert len(together) == 2 * 3 * 2**5
    keys = [word.partition("=")[0] for word in SWEEP]
    lists = [word.partition("=")[2].split(",") for word in SWEEP]
    for place in range(0, len(together), 17):
        rest, words = place, []
        for key, values in reversed(list(zip(keys, lists, strict=True))):
            rest, at = divmod(rest, len(values))
            words.append(f"{key}={values[at]}")
        words.sort(key=lambda word: word.partition("=")[0].count("."))
        (alone,) = cells_of(words)
        assert any(alone == cell and alone.id == cell.id for cell in together), words
    assert len({id(cell.policy) for cell in together}) <= 2 * 3 * 2, "parts are built once"
    assert {cell.score.seed for cell in together if cell.eviction.score_label == "random"} == {1, 2}  # type: ignore[attr-defined]


def test_a_budget_in_bytes_is_that_of_the_model() -> None:
    """A cell is named by what was asked for; a score that depends on the budget knows the tokens."""
    words = ["policy=snapkv", "score=attn,compactor", "task.context_length=512"]
    (plain, compactor), (plain_bytes, compactor_bytes) = (
        cells_of([*words, "budget=64"]),
        cells_of([*words, "budget=1MiB"]),
    )
    pairs = 2**20 // token_bytes(plain.model, "kv_heads")
    assert (str(plain_bytes.budget), plain_bytes.budget.of(512)) == ("1MiB", pairs)
    assert plain_bytes.description == plain.description | {"budget": "1MiB"}
    assert compactor_bytes.score == replace(compactor.score, budget=str(pairs))  # type: ignore[call-arg]
    (wide,) = cells_of(["policy=snapkv", "policy.layout=query_heads", "budget=1MiB"])
    assert wide.budget.of(512) <= pairs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["budget=1KiB"],
            r"budget=1KiB keeps nothing: a token takes .* in all heads and layers of this model; allowed",
        ),
        (["budget=1MiB", "store=int4"], "store=int4 quantizes .*: use store=flat, or a number of KV pairs"),
        (["budget=99999999TiB"], r"budget=99999999TiB: allowed: .* below 2\^63"),
        (["budget=600KB"], r"budget=600KB is not a number: allowed: .* bytes of a prompt's KV pairs \(600KiB, 2GiB\)"),
    ],
)
def test_a_budget_in_bytes_that_cannot_be_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cells_of(["policy=snapkv", *words])


def test_a_store_in_few_bits_is_told_by_the_label() -> None:
    """Tables take a policy called full for the reference; what is timed may be packed."""
    swept_cells = cells_of(["policy=full,snapkv", "budget=0.1", "store=flat,int4", "task=efficiency"])
    labels = [(cell.eviction.policy_label, cell.held.store) for cell in swept_cells]
    assert labels == [
        (f"{policy} store=int4" if store == "int4" else policy, store)
        for policy in ("full", "snapkv")
        for store in ("flat", "int4")
    ]
    for cell in swept_cells:
        cell.check()


def test_a_reference_is_the_value_of_another_setting() -> None:
    swept_cells = cells_of(
        ["policy=snapkv", "budget=64,48", "policy.window=${policy.recent}", "policy.recent=${budget}"]
    )
    assert [(cell.budget.of(999), cell.policy.window) for cell in swept_cells] == [(64, 64), (48, 48)]
    (cell,) = cells_of(["policy=kvzip", "score.repeat_prompt=of${budget}and${seed}", "seed=3"])
    assert cell.score == KVzip(repeat_prompt="of0.1and3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=${bugdet}"], r"\$\{bugdet\}: no setting bugdet to refer to: did you mean budget\?"),
        (["seed=${policy.window.x}"], r"\$\{policy.window.x\}: no setting policy.window.x to refer to: "),
        (["seed=${budget}", "budget=${seed}"], r"\$\{seed\}: seed refers to itself"),
        (["policy.window=${policy}"], r"\$\{policy\}: policy refers to itself"),
        (["seed=${data}"], r"seed=\{root:null,verify:true\}: allowed: an integer"),
    ],
)
def test_a_reference_to_no_value_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cells_of(["policy=snapkv", *words])


def test_work_is_bounded_by_parts_and_not_by_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files read, parts built: as many for 240 cells as for a few."""
    counts: Counter[str] = Counter()

    def counted(where: Any, name: str) -> None:
        real = getattr(where, name)

        def wrapper(*given: Any, **named: Any) -> Any:
            counts[name] += 1
            return real(*given, **named)

        monkeypatch.setattr(where, name, wrapper)

    for where, name in ((compose, "_merged"), (yaml, "load"), (cells, "build")):
        counted(where, name)
    work = []
    for budgets in (range(100, 102), range(100, 160)):
        counts.clear()
        parsed.cache_clear()
        swept_cells = cells_of(["policy=snapkv,tova_obcache", "seed=1,2", f"budget={','.join(map(str, budgets))}"])
        assert len({cell.id for cell in swept_cells}) == 4 * len(budgets)
        work.append(dict(counts))
    assert work[0] == work[1] and min(work[0].values()) > 0 and len(work[0]) == 3


def test_a_text_that_is_written_is_read_again() -> None:
    for text in ("\n\nRepeat it, exactly.", 'it\'s "so"', "a\\nb", "a\\nb\nc", "end\\", " ", "", "x=1"):
        word = f"score.repeat_prompt={format_value(text)}"
        alone, again, other = *cells_of(["policy=kvzip", word]), *cells_of(["policy=kvzip", f"{word},other"])
        assert alone.score == again.score == KVzip(repeat_prompt=text) and other.score == KVzip(repeat_prompt="other")


def test_line_ends_are_escapes_in_double_quotes_only() -> None:
    """The default of the file, typed: the same cell. In single quotes a backslash is itself, as in YAML."""
    (default,) = cells_of(["policy=kvzip"])
    (typed,) = cells_of(["policy=kvzip", r'score.repeat_prompt="\n\nRepeat the previous context exactly."'])
    assert typed.id == default.id
    double, single = cells_of(["policy=kvzip", r"""score.repeat_prompt="\nA",'\nA'"""])
    assert (double.score, single.score) == (KVzip(repeat_prompt="\nA"), KVzip(repeat_prompt=r"\nA"))
    assert double.eviction.score_label == r'kvzip repeat_prompt="\nA"'  # one line, and a setting to copy


def test_a_setting_that_is_missing_is_asked_for() -> None:
    with pytest.raises(ValueError, match="budget has no default"):
        cells_of(["budget=???"])


def test_a_label_names_every_setting_of_a_kind_of_layers() -> None:
    labels = [
        cells_of(["policy=snapkv", f"policy.layers={layers}"])[0].eviction.policy_label
        for layers in ("pyramid", "{kind:pyramid,splits:budget}")
    ]
    start = "snapkv layers.kind=pyramid layers.beta=20"
    assert labels == [f"{start} layers.splits=candidates", f"{start} layers.splits=budget"]


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (["policy.apply=d2o"], "snapkv apply=d2o"),
        (["policy.apply={kind:think,ratio:0.5}", "policy.page=16"], "snapkv apply=think apply.ratio=0.5 page=16"),
        (["policy.apply=drop"], "snapkv"),
    ],
)
def test_a_label_names_the_kind_of_apply_and_what_differs_from_its_defaults(words: list[str], label: str) -> None:
    assert cells_of(["policy=snapkv", *words])[0].eviction.policy_label == label
