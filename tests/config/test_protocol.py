"""One window, newest tokens and pooling for all policies that have them, or those of each policy's own file."""

import pytest

from kvbench.config.compose import combinations, options
from kvbench.config.multirun import multirun
from kvbench.config.overrides import parse
from kvbench.papers.item import item_of
from kvbench.papers.settings import cells_of_item
from kvbench.report.tables.windows import windows
from tests.config.test_cells import cells_of

OWN = {
    "ada_snapkv": (32, 32),
    "cake": (32, 32),
    "h2o": (16, 16),
    "h2o_full": ("all", 8),
    "lava": (32, 32),
    "pyramidkv": (8, 8),
    "snapkv": (32, 32),
    "streaming_llm": (1, 0),
    "tova": (1, 0),
}
"""Window and recent of the paper or the code that a policy's file names."""
LACKING = {"h2o": (16, 16, None), "h2o_full": ("all", 16, None), "tova": (1, 0, None), "streaming_llm": (1, 0, None)}
HF = ("model=hf", "model.path=nowhere")


def of(policy: str, *words: str) -> tuple:
    (tree,) = combinations(parse([f"policy={policy}", *words]))
    pool = tree["policy"]["pool"]
    return tree["policy"]["window"], tree["policy"]["recent"], pool and (pool["kind"], pool["size"])


def test_policies_share_what_they_have_and_keep_what_they_lack() -> None:
    for policy, own in OWN.items():
        assert of(policy) == LACKING.get(policy, (16, 16, ("max", 7))), policy
        assert of(policy, "protocol=paper")[:2] == own, policy
    assert of("cake", "protocol=paper")[2] == ("avg", 5)
    with pytest.raises(ValueError, match="protocol=fair: allowed: common, paper"):
        of("lava", "protocol=fair")


def test_all_policies_share_one_window_by_default() -> None:
    names = [name for name in options("policy") if name not in ("duo_attention", "full", "triattention")]
    cells = cells_of([f"policy={','.join(names)}"])
    text = windows([cell.id for cell in cells], {cell.id: cell.description for cell in cells}.get)
    assert text == "window 16, recent 16, pool max 7 where a policy has them"


def test_what_is_named_wins_and_a_label_says_what_differs_from_the_default() -> None:
    assert of("lava", "policy.window=64")[0] == 64
    cells = cells_of(["policy=lava,snapkv", "protocol=common,paper", "policy.recent=24"])
    assert [cell.policy_label for cell in cells] == [
        "lava recent=24",
        "lava window=32 recent=24",
        "snapkv recent=24",
        "snapkv window=32 recent=24",
    ]


def test_items_of_papers_have_the_papers_own_windows() -> None:
    """Table 9 of LAVa: 32 for all (Appendix D); a command line can ask for another protocol and is then told apart."""
    entries = cells_of_item(item_of("lava/figure3"), parse(["model=reference"])).entries
    assert {entry.cell.policy.window for entry in entries if "budget" in entry.cell.policy.takes} == {32}
    entries = cells_of_item(item_of("lava/figure3"), parse(["model=reference", "protocol=common"])).entries
    assert any("protocol=common instead of protocol=paper" in entry.differs for entry in entries)


def test_tasks_of_ruler_have_one_length_in_a_command() -> None:
    lengths = {tree["task"]["context_length"] for tree in combinations(parse(["task=ruler"]))}
    assert lengths == {4096}
    assert {tree["task"]["context_length"] for tree in combinations(parse(["task=ruler/niah_*"]))} == {1024}
    mixed = combinations(parse(["task=ruler/niah_single_1,ruler/vt,efficiency"]))
    assert [tree["task"]["context_length"] for tree in mixed] == [1024, 1024, 512]
    named = combinations(parse(["task=ruler", "task.context_length=2048,8192"]))
    assert {tree["task"]["context_length"] for tree in named} == {2048, 8192}
    with pytest.raises(ValueError, match=r"have the lengths of their files: add task\.context_length=1024"):
        multirun(["task=ruler/niah_single_1,ruler/vt"], lambda words: 0, print, 75)


def test_another_model_needs_the_length_of_rulers_prompts() -> None:
    with pytest.raises(ValueError, match=r"task\.context_length has no default: add task\.context_length=4096"):
        cells_of([*HF, "task=ruler/niah_single_1"])
    (tree,) = combinations(parse([*HF, "task=efficiency"]))
    assert tree["task"]["context_length"] == 512
