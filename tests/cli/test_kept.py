"""results.kept: what cells kept, beside their rows."""

from pathlib import Path

from kvbench.records import read_kept
from tests.cli.conftest import Command, rows_of


def test_kept_sets_are_written_beside_the_rows(kvbench: Command, tiny: tuple[str, ...]) -> None:
    kvbench("run", *tiny, "policy=full,h2o_obcache", "budget=0.2", "results.kept=positions")
    kept = read_kept("out")
    assert {(row.cell, row.sample): row.kept_sha256 for row in rows_of(Path("out"))} == {
        key: own.sha256 for key, own in kept.items()
    }


def test_a_part_of_the_budget_or_of_the_prompt_is_protected(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """The newest tokens of every sample; the cells are told apart by their labels."""
    for of, name in (("budget", "of_budget"), ("prompt", "of_prompt")):
        part = f"{{part:0.1,of:{of}}}"
        words = ("policy=h2o_obcache", "budget=0.3", f"policy.window={part}", f"policy.recent={part}", "task.samples=1")
        assert kvbench("run", *tiny, *words, "results.kept=positions", f"results.dir={name}").code == 0
        (row,), (kept,) = rows_of(Path(name)), read_kept(name).values()
        assert row.prompt_tokens is not None and f"recent.part=0.1 recent.of={of}" in row.policy
        pairs = int(0.3 * row.prompt_tokens + 0.5)
        newest = pairs // 10 if of == "budget" else row.prompt_tokens // 10
        assert set(range(kept.num_tokens - newest, kept.num_tokens)) <= set(kept.positions(1, 0))


def test_budgets_are_exact_but_where_a_published_code_overspends(kvbench: Command, tiny: tuple[str, ...]) -> None:
    """LAVa's stale floor adds a fifth of the window to every head; the row says what really stays."""
    words = (*tiny, "policy=ada_snapkv,lava,lava_pyramid", "policy.window=16", "policy.recent=16", "budget=60")
    assert kvbench("run", *words, "policy.variant=paper", "results.dir=paper").code == 0
    assert kvbench("run", *words, "policy.variant=official", "results.dir=official").code == 0
    assert {row.kept_tokens for row in rows_of(Path("paper"))} == {60}
    spent = {row.policy.split()[0]: row for row in rows_of(Path("official"))}
    assert spent["lava"].variant == "official" and 61 < (spent["lava"].kept_tokens or 0) < 66
    for row in spent.values():
        assert row.kept_fraction is not None and row.kept_tokens is not None and row.prompt_tokens is not None
        assert abs(row.kept_fraction - row.kept_tokens / row.prompt_tokens) < 1e-9
        assert row.cache_bytes == row.kept_tokens * 2 * 2 * 2 * 8 * 4
