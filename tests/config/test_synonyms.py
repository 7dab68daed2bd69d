"""Words of kvpress and of the papers' code lead to settings that can be planned."""

import re
from pathlib import Path

import pytest

from kvbench.cli.main import declared
from kvbench.config.entries import options
from kvbench.config.overrides import parse
from kvbench.config.synonyms import synonyms
from kvbench.support.errors import UserError
from kvbench.support.plugins import OURS, SYNONYMS, Source, items, own_sources
from kvbench.work.planned import checked
from tests.plugins import made_up

TABLE = {  # kvpress: evaluation/evaluate_registry.py, evaluate_config.yaml; lm-evaluation-harness: its flags
    "compression_ratio=0.5": "budget=0.5 ",
    "compression_ratio=0.75,0.9": "budget=0.25,0.1 ",
    "compression_ratio=half": "budget=SHARE ",
    "ratio=0.3": "budget=0.3 ",  # KVzip's --ratio is what is kept
    "press=snapkv": "policy=snapkv",
    "press_name=knorm": "policy=plain score=key_norm",
    "press=snapkv,tova": "policy=snapkv or policy=tova",
    "press=think": "policy=snapkv policy.apply.kind=think",
    "press=unheard_of": "policy=NAME ",
    "policy=quest": "policy=full reader=quest",
    "policy=kivi": "policy=full store=kivi4",
    "attn_implementation=flash_attention_2": "model.attention=flash ",
    "batch_size=4": "task=efficiency task.batch=4",
    "num_fewshot=5": "task=helmet task.shots=5",
    "policy=expected_attention": "policy=plain score=expected_attention",
    "press=EntropyGatedChunkKVPress": "policy=gated_chunkkv",
    "press=critical_snapkv": "policy=snapkv score=criticalkv",
    "press=kvzip_plus": "policy=plain score=kvzip_plus",
    "policy=knorm": "policy=plain score=key_norm",
    "policy=observed_attention": "policy=h2o policy.reduce=observed_attention policy.recent=0",
    "policy=adakv_snapkv": "policy=ada_snapkv",
    "policy=SnapKVPress": "policy=snapkv",
    "policy=StreamingLLM": "policy=streaming_llm",
    "score=snapkv": "policy=snapkv",
    "score=KeyNorm": "score=key_norm",
    "model=Qwen/Qwen3-0.6B": "model=hf model.path=Qwen/Qwen3-0.6B",
    "tasks=ruler": "task=ruler",
    "limit=5": "task.samples=5",
    "window_size=32": "policy.window=32",
}


def message(word: str) -> str:
    with pytest.raises(UserError) as error:
        checked(parse([word]), print)
    return str(error.value)


@pytest.mark.parametrize("word", TABLE)
def test_a_word_of_another_tool_leads_to_ours(word: str) -> None:
    text = message(word)
    assert text.startswith("unknown ") and "\n" not in text
    assert (text + " ").partition(": write ")[2].startswith(TABLE[word])


@pytest.mark.parametrize("text", [*synonyms()["methods"].values(), "policy=plain score=expected_attention"])
def test_what_a_method_leads_to_can_be_planned(text: str) -> None:
    heads = "tests/golden/heads/full_attention_heads.tsv"
    assert checked(parse(text.partition(" (")[0].replace("FILE", heads).split()), print)[1]


@pytest.mark.parametrize(
    ("line", "fix"),
    {
        "--tasks ruler --seed": "task=ruler",
        "--tasks=ruler,squad": "task=ruler,squad",
        "--model Qwen/Qwen3-0.6B": "model=hf model.path=Qwen/Qwen3-0.6B",
        "--policy h2o": "policy=h2o",
        "--limit": "task.samples=VALUE",
        "--batch-size 4": "task=efficiency task.batch=4",
    }.items(),
)
def test_a_flag_that_is_a_setting_leads_to_it(line: str, fix: str) -> None:
    with pytest.raises(UserError) as error:
        declared("run").read(line.split())
    assert f"unknown flag {re.split('[ =]', line)[0]}: write {fix}" in str(error.value)


def test_settings_lead_to_settings_that_exist() -> None:
    for text in synonyms()["settings"].values():
        names = re.findall(r"([\w.]+)=", text)
        words = [f"{name}=null" if name != "model" else "model=hf" for name in names if name not in ("budget", "task")]
        words += re.findall(r"\btask=[a-z]+", text)
        try:
            checked(parse(words), print)
        except UserError as error:
            assert "unknown setting" not in str(error)


NAMED = re.compile(r"\b(policy|score|store|reader|task|model|policy\.apply\.kind)=([a-z]\w*)")


@pytest.mark.parametrize("source", own_sources(), ids=lambda source: source.package)
def test_words_of_a_source_lead_to_nothing_that_only_another_extra_has(source: Source) -> None:
    file = source.conf / SYNONYMS
    words = file.read_text("utf-8") if file.is_file() else ""
    named = {(group, name) for group, name in NAMED.findall(words)}
    extras = {
        (group, name)
        for group, name in named
        for item in items("step" if "." in group else group).values()
        if item.name.removeprefix("apply/").partition("/")[0] == name
        and item.source.package not in (source.package, OURS)
    }
    assert extras == set() and (named or source.package != OURS)


def test_a_plugin_brings_words_of_other_tools_and_changes_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"conf/synonyms.yaml": "methods: {knorm: policy=full, noone: policy=plain score=random}\n"}
    monkeypatch.syspath_prepend(str(made_up(tmp_path / "a", "worded", files)))
    monkeypatch.syspath_prepend(str(made_up(tmp_path / "b", "badly_worded", {"conf/synonyms.yaml": "methods: [\n"})))
    merged = synonyms.__wrapped__()["methods"]
    assert merged["noone"] == "policy=plain score=random" and merged["knorm"] == "policy=plain score=key_norm"


def test_words_of_other_tools_hide_none_of_ours() -> None:
    assert {*synonyms()["methods"]} & {*options("policy"), *options("score")} == {
        "compactor"
    }  # the press is our score on `plain`
