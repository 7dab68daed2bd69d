"""Whether a method acted on a prompt, and the tables of those in which it did."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cli.main import main
from kvbench.records import Row
from kvbench.records.columns import table_of
from kvbench.report.acted import acted
from kvbench.report.tables.summary import summaries

WHOLE = {"kept_fraction": 1.0, "kept_tokens": 100.0, "cache_bytes": 1000, "full_cache_bytes": 1000}
PART = {"kept_fraction": 0.5, "kept_tokens": 50.0, "cache_bytes": 500, "full_cache_bytes": 1000}
STEPS = "prompt decode_every=4"
READS = "snapkv reader=quest reader.budget=50"


def judged(row: Row) -> bool | None:
    """Whether the method of a row acted; None: not known."""
    (is_less,), (is_known,) = acted(table_of([row]))
    assert is_known or not is_less
    return bool(is_less) if is_known else None


@pytest.mark.parametrize(
    ("policy", "columns", "answer"),
    [
        ("snapkv", PART, True),
        ("snapkv", WHOLE, False),
        ("snapkv layout=query_heads", PART | {"cache_bytes": 2000}, True),
        ("full store=int8", WHOLE | {"cache_bytes": 300}, True),
        ("full", WHOLE | {"cache_bytes": 900}, False),
        ("rkv", WHOLE | {"schedule": STEPS, "decode_evictions": 3}, True),
        ("rkv", WHOLE | {"schedule": STEPS, "decode_evictions": 0}, False),
        ("rkv", WHOLE | {"schedule": STEPS}, None),
        ("rkv", PART | {"schedule": STEPS}, True),
        ("snapkv", {}, None),
        ("snapkv", {"kept_fraction": 0.1}, True),
        (READS, WHOLE, None),
        (READS, WHOLE | {"read_bytes": 1020, "new_tokens": 4, "prompt_tokens": 100}, False),  # 100 pairs and 2 of 4
        (READS, WHOLE | {"read_bytes": 1000, "new_tokens": 4, "prompt_tokens": 100}, True),
    ],
)
def test_a_method_acts_where_it_holds_or_reads_less(cell, policy: str, columns: dict, answer: bool | None) -> None:
    (row,) = cell([1.0], policy, **columns)
    assert judged(row) is answer


@given(
    values=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=12),
    evictions=st.lists(st.sampled_from([0, 2, None]), min_size=12, max_size=12),
)
def test_means_of_triggered_prompts_are_those_of_the_rows_that_acted(values: list, evictions: list) -> None:
    """Whatever else there is; without the flag nothing but the share is new."""
    rows = [
        Row(
            **{"cell": "c", "sample": n, "model": "m", "task": "t", "task_version": None, "context_length": None},
            **{"policy": "rkv", "score": "rkv", "budget": "64", "variant": None, "layout": None, "schedule": STEPS},
            **{"seed": None, "metric": "exact", "value": value, "decode_evictions": later, **WHOLE},
        )  # type: ignore[arg-type]
        for n, (value, later) in enumerate(zip(values, evictions, strict=False))
    ]
    known = [row for row in rows if row.decode_evictions is not None]
    did = [row for row in known if row.decode_evictions]
    (whole,), (part,) = summaries(rows), summaries(rows, triggered=True)
    assert (whole.n, whole.judged, whole.unjudged) == (len(rows), len(known), len(rows) - len(known))
    assert whole.acted == part.acted == (len(did) / len(known) if known else None)
    assert part.n == len(did) and part.mean == (sum(row.value or 0 for row in did) / len(did) if did else None)


def test_a_table_of_triggered_prompts_says_which_and_names_controls(
    cell, results, capsys: pytest.CaptureFixture[str]
) -> None:
    def prompts(rows: list[Row], evictions: dict[int, int | None]) -> list[Row]:
        """The rows with the hash of their prompts, and evictions from these answers."""
        return [
            replace(row, prompt_sha256=f"{row.sample:064d}", decode_evictions=evictions.get(row.sample, 0))
            for row in rows
        ]

    full = prompts(cell([1.0] * 5 + [0.0] * 5, "full", **WHOLE), {})
    short = prompts(cell([1.0] * 10, "rkv", budget="512", schedule=STEPS, **WHOLE), {9: 1})
    long = prompts(cell([0.0, *[1.0] * 9], "rkv", budget="64", schedule=STEPS, **WHOLE), {0: 3, 1: 2, 2: 1, 8: None})
    folder = results(full, short, long)
    triggered = ["report", "table", "--results", str(folder), "--triggered"]
    assert main(triggered) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "Means are over the prompts in which the method acted: rkv attn 64 (3 of 9, 33 %, full there 100.0); all "
        "others: all. full: all prompts." in text
    )
    assert "Left out, as they do not say whether their method acted: 1 row." in text
    assert "Controls, whose method acted on less than 20 % of the prompts: rkv attn 512 (1 of 10, 10 %, full" in text
    assert main(["report", "table", "--results", str(folder)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Means are over the prompts" not in text and "do not say" not in text
    assert "less than 20 % of the prompts: rkv attn 512 (1 of 10, 10 %)." in text
    assert main([*triggered, "policy=full"]) == 4
    assert "--triggered: no row says that its method acted on the prompt" in capsys.readouterr().err
    assert main([*triggered, "against=rkv"]) == 2
    assert "--triggered takes other prompts for every cell: leave out against=" in capsys.readouterr().err
