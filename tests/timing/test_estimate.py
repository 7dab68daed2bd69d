"""Estimates from rates: how curves go on, and how much of each part a plan has."""

import pytest

from kvbench.cli.main import main
from kvbench.config.overrides import parse
from kvbench.eviction.budget import Tokens
from kvbench.records import ResultsFolder
from kvbench.records.rates import Rates, read_rates, write_rates
from kvbench.run.plan import plan
from kvbench.run.timing.estimate import estimate
from kvbench.run.timing.rates import kind, tile_name


@pytest.mark.parametrize(("tokens", "seconds"), [(100, 2.0), (400, 8.0), (200, 4.0), (50, 1.0), (1600, 32.0)])
def test_a_straight_curve_goes_on_straight(tokens, seconds):
    assert Rates({"read": {100: 2.0, 400: 8.0}}).seconds("read", tokens) == pytest.approx(seconds)


def test_beyond_the_last_point_the_last_two_say_how_steep_it_is():
    rates = Rates({"read": {10: 1.0, 100: 1.0, 200: 4.0}})
    assert rates.seconds("read", 400) == pytest.approx(16.0)
    assert rates.seconds("read", 50) == pytest.approx(1.0)


def test_no_curve_is_steeper_than_a_square_or_falls():
    assert Rates({"x": {10: 1.0, 20: 16.0}}).seconds("x", 40) == pytest.approx(16.0)
    assert Rates({"x": {10: 2.0, 20: 1.0}}).seconds("x", 40) == pytest.approx(2.0)
    assert Rates({"x": {10: 3.0}}).seconds("x", 40) == 3.0
    assert Rates().seconds("x", 40) is None


def test_rates_of_another_machine_or_model_do_not_count(tmp_path):
    folder = ResultsFolder(tmp_path)
    write_rates(folder, {"device": "one"}, "w", {"read a": {100: 2.0}})
    write_rates(folder, {"device": "one"}, "w", {"read b": {100: 3.0}})
    assert set(read_rates(folder, {"device": "one"}, "w").curves) == {"read a", "read b"}
    assert not read_rates(folder, {"device": "two"}, "w").curves
    assert not read_rates(folder, {"device": "one"}, "v").curves
    next(iter((tmp_path / "rates").glob("*.json"))).write_text("{")
    with pytest.raises(ValueError, match="remove it and measure again"):
        read_rates(folder, {"device": "one"}, "w")


def cells_of(*words):
    from kvbench.cli.sweep import checked

    return checked(parse(["task.context_length=1000", *words]))[1]


def group_of(*words, done=()):
    (group,) = plan(cells_of(*words), set(done)).groups
    return group


def flat(cells, **parts):
    """Rates that do not depend on tokens, the same for all kinds."""
    curves = {f"{part} {kind(cell)}": {1: seconds} for cell in cells for part, seconds in parts.items()}
    return Rates(curves | {"step kv_heads 1": {1: 1.0}, "step kv_heads tile": {1: 1.0}, "tile": {1: 16}})


def test_budgets_share_a_ranking_and_all_share_the_prompt():
    asked = ["policy=snapkv", "score=attn,obcache_key", "budget=0.1,0.2,0.4", "task.samples=5", "task.max_new_tokens=3"]
    group = group_of(*asked)
    found = estimate(group, flat(group.cells, read=100.0, rank=10.0, cut=0.5), 900)
    assert found.unknown == {}
    assert found.seconds == pytest.approx(5 * (100 + 2 * 10 + 6 * 0.5 + 2 * 1.0))


def test_what_keeps_all_ranks_nothing_and_what_is_done_costs_nothing():
    words = ["policy=snapkv", "score=attn", "task.samples=3", "task.max_new_tokens=1"]
    group = group_of(*words, "budget=2000")
    assert group.cells[0].budget == Tokens(2000)
    rates = flat(group.cells, read=100.0, cut=0.5)
    assert estimate(group, rates, 900).seconds == pytest.approx(3 * 100.5)
    left = group_of(*words, "budget=2000", done={(group.cells[0].id, 0), (group.cells[0].id, 2)})
    assert estimate(left, rates, 900).seconds == pytest.approx(100.5)


def test_what_was_not_measured_is_named():
    group = group_of("policy=snapkv", "score=attn", "budget=0.1", "task.samples=1")
    found = estimate(group, Rates(), 900)
    assert found.seconds == 0 and any(name.startswith("read snapkv/attn") for name in found.unknown)


def test_texts_share_passes_and_repetitions_do_not_share_prompts(tmp_path):
    (tmp_path / "pg19").mkdir()
    (tmp_path / "pg19" / "book.txt").write_text("A book.")
    words = ["task=pg19", f"data.root={tmp_path}", "task.samples=1", "policy=full,tova", "score=attn", "budget=64"]
    group = group_of(*words)
    rates = Rates({f"text {tile_name(group.cells)}": {1: 13.0}, "tile": {1: 16}})
    assert estimate(group, rates, 1000).seconds == pytest.approx(13.0)
    words = ["task=efficiency", "task.batch=2", "task.repeats=3", "task.warmup=1", "task.new_tokens=5", "policy=full"]
    group = group_of(*words)
    (cell,) = group.cells
    rates = Rates({f"first 2 {kind(cell)}": {1: 8.0}, f"later 2 {kind(cell)}": {1: 1.0}, "ceiling": {1: 0.5}})
    assert estimate(group, rates, 1000).seconds == pytest.approx(4 * (8 + 4) + 0.5)


@pytest.mark.slow
def test_a_plan_says_seconds_once_its_rates_were_measured(tmp_path, capsys):
    words = ["policy=full,snapkv", "task.context_length=400", "task.samples=2", f"results.dir={tmp_path}"]
    assert main(["plan", *words, "budget=0.2"]) == 0
    assert "--measure measures the rates of reference on this machine" in capsys.readouterr().out
    assert main(["plan", "--measure", *words, "budget=0.2"]) == 0
    assert "on this machine" in capsys.readouterr().out
    assert main(["plan", *words, "budget=0.1,0.2,64"]) == 0  # no new kind of cell
    told = capsys.readouterr().out
    assert "about" in told and "to start" in told and not list((tmp_path / "rows").glob("*"))
    assert main(["plan", *words, "policy=tova"]) == 0
    assert "--measure measures" in capsys.readouterr().out
