"""One window, newest tokens and pooling for all policies that have them, or those of each policy's own file."""

import re

import pytest

from kvbench.config.compose import combinations
from kvbench.config.entries import options
from kvbench.config.overrides import parse
from kvbench.papers.cells import cells_of_item
from kvbench.papers.item import item_of
from kvbench.records.labels import COMMON, PAPER, policy_of, protocol_of, variant_of
from kvbench.report.tables.observation_note import windows
from scripts.document_methods import entry
from tests.composed import needed
from tests.config.test_cells import cells_of

OWN = {
    "ada_snapkv": (32, 32),
    "cake": (32, 32),
    "h2o_obcache": (16, 16),
    "h2o": ("all", {"part": 0.5, "of": "budget"}),
    "lava": (32, 32),
    "pyramidkv": (8, 8),
    "snapkv": (32, 32),
    "streaming_llm": (1, 0),
    "tova_obcache": (1, 0),
}
"""Window and recent of the paper or the code that a policy's file names."""
LACKING = {
    "h2o_obcache": (16, 16, None),
    "h2o": ("all", 16, None),
    "tova_obcache": (1, 0, None),
    "streaming_llm": (1, 0, None),
}
HF = ("model=hf", "model.path=nowhere")


def of(policy: str, *words: str) -> tuple:
    (tree,) = combinations(parse([f"policy={policy}", *words]))
    pool = tree["policy"]["pool"]
    return tree["policy"]["window"], tree["policy"]["recent"], pool and (pool["kind"], pool["size"])


def test_policies_share_what_they_have_and_keep_what_they_lack() -> None:
    for policy, own in OWN.items():
        assert of(policy, "protocol=common") == LACKING.get(policy, (16, 16, ("max", 7))), policy
        assert of(policy)[:2] == of(policy, "protocol=paper")[:2] == own, policy
    assert of("cake")[2] == ("avg", 5)
    with pytest.raises(ValueError, match="protocol=fair: allowed: paper, common"):
        of("lava", "protocol=fair")


def test_all_policies_share_one_window_under_the_common_protocol() -> None:
    names = [name for name in options("policy") if name not in ("duo_attention", "full", "triattention")]
    cells = cells_of([f"policy={','.join(names)}", "protocol=common"])
    text = windows(dict.fromkeys(cell.id for cell in cells), {cell.id: cell.description for cell in cells}.get)
    assert text == "window 16, recent 16, pool max 7 where a policy has them"


def test_what_is_named_wins_and_a_label_says_what_differs_from_its_protocol() -> None:
    assert of("lava", "policy.window=64")[0] == 64
    cells = cells_of(["policy=lava,streaming_llm", "protocol=common,paper", "policy.sink=2"])
    columns = [cell.method.columns for cell in cells]
    assert [(each["policy"], each["protocol"], each["variant"]) for each in columns] == [
        ("lava@common sink=2", "common", None),
        ("lava sink=2", "paper", None),
        ("streaming_llm sink=2", "paper", None),
        ("streaming_llm sink=2", "paper", None),
    ]
    (plain, official) = cells_of(["policy=lava", "policy.variant=paper,official"])
    assert [plain.method.columns[name] for name in ("policy", "variant")] == ["lava", "paper"]
    assert official.method.columns["variant"] == "official"
    (common,) = cells_of(["policy=lava", "policy.variant=official", "protocol=common"])
    assert [common.method.columns[name] for name in ("policy", "variant")] == ["lava@common", "official"]


@pytest.mark.parametrize("name", options("policy"))
def test_a_label_says_its_policy_and_its_protocol(name: str) -> None:
    """A policy that both protocols have alike is of the paper's, under its plain name."""
    own, shared = (
        cells_of([f"policy={name}", f"protocol={protocol}", *needed("policy", name)])[0] for protocol in (PAPER, COMMON)
    )
    for cell in (own, shared):
        assert policy_of(cell.eviction.policy_label) == name
        assert protocol_of(cell.eviction.policy_label) == cell.eviction.protocol
    assert own.eviction.protocol == PAPER
    assert (shared.eviction.protocol == PAPER) == (shared.id == own.id)


def test_only_a_plain_label_is_on_the_side_of_the_paper() -> None:
    for beside in ("", " store=int8", " reader=quest reader.budget=64"):
        assert variant_of(f"snapkv{beside}", "paper") == "paper"
        for changed in ("snapkv@common", "snapkv window=32"):
            assert variant_of(changed + beside, "paper") is None
            assert variant_of(changed + beside, "official") == "official"


def test_items_of_papers_have_the_papers_own_windows() -> None:
    """Table 9 of LAVa: 32 for all (Appendix D); a command line can ask for another protocol and is then told apart."""
    entries = cells_of_item(item_of("lava/figure3"), parse(["model=reference"])).entries
    assert {entry.cell.policy.window for entry in entries if "budget" in entry.cell.policy.accepts} == {32}
    entries = cells_of_item(item_of("lava/figure3"), parse(["model=reference", "protocol=common"])).entries
    assert any("protocol=common instead of protocol=paper" in entry.differs for entry in entries)


def test_tasks_of_ruler_have_one_length_in_a_command_and_none_for_another_model() -> None:
    def lengths(*words: str) -> list[int]:
        return [tree["task"]["context_length"] for tree in combinations(parse(words))]

    assert {*lengths("task=ruler")} == {4096} and {*lengths("task=ruler/niah_*")} == {1024}
    assert lengths("task=ruler/niah_single_1,ruler/vt,efficiency") == [1024, 1024, 512]
    assert {*lengths("task=ruler", "task.context_length=2048,8192")} == {2048, 8192}
    assert lengths(*HF, "task=efficiency") == [512]
    with pytest.raises(ValueError, match=r"task\.context_length has no default: add task\.context_length=4096"):
        cells_of([*HF, "task=ruler/niah_single_1"])


def lines_of(name: str) -> dict[str, str]:
    """What a policy's file says of the defaults of its paper and its code, each on one line; without both, kvpress."""
    elsewhere = {
        place: " ".join(text.split()).removesuffix(".") for place, text in entry("policy", name).elsewhere.items()
    }
    own = {place: elsewhere[place] for place in ("paper", "code")}
    return {"kvpress": elsewhere["kvpress"]} if {*own.values()} == {"none"} else own


def stated(line: str) -> dict[str, str]:
    """Window, newest tokens, pooling and first tokens that a line states; none where it names none or several."""
    settings = {key: value for key in ("window", "recent") for value in re.findall(rf"\b{key} ([^,;]+)", line)[:1]}
    settings["recent"] = settings["window"] if settings["recent"] == "the window" else settings["recent"]
    pool = re.search(r"\bno pool\b|\b(max|avg) pool \d+", line)
    settings["pool"] = pool[0] if pool else "not stated"
    if sinks := re.search(r"(?<!to )\b(\d+) sinks", line):
        settings["sink"] = sinks[1]
    return settings


def agrees(key: str, value: object, text: str) -> bool:
    """Whether a setting has the value of a line; words without a number leave it open."""
    if key == "pool":
        return text == "not stated" or text == ("no pool" if value is None else f"{value['kind']} pool {value['size']}")  # type: ignore[index]
    if text in ("all", "the question"):
        return value == text.removeprefix("the ")
    if text == "half of the budget":
        return value == {"part": 0.5, "of": "budget"}
    if text == "none":
        return value in (None, 0, 1)
    if text.partition(" ")[0].isdigit():
        return value in [int(number) for number in re.findall(r"\b\d+\b(?! %)", text.partition("(")[0])]
    assert text in ("not stated", "the rest", "a size of its own", "5 % of the budget"), text
    return text == "not stated" or value == 0  # StreamingLLM's budget


@pytest.mark.parametrize("name", [name for name in options("policy") if name not in ("full", "plain")])
def test_the_papers_protocol_is_the_paper_or_its_code(name: str) -> None:
    """All that one of the two lines of a policy's file states is what `protocol=paper` runs."""
    (tree,) = combinations(parse([f"policy={name}", "protocol=paper"]))
    lines = {label: stated(line) for label, line in lines_of(name).items() if line != "none"}
    assert lines, name
    for settings in lines.values():  # what the paper leaves open its code states
        settings |= {key: text for key, text in lines.get("code", {}).items() if settings.get(key) == "not stated"}
    wrong = {
        label: [f"{key}: {tree['policy'][key]}, {label}: {text}" for key, text in settings.items()
                if not agrees(key, tree["policy"][key], text)]
        for label, settings in lines.items()
    }  # fmt: skip
    assert [] in wrong.values(), wrong
