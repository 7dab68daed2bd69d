"""Prompts of a user's own file: what a model reads of them, what they are scored by, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.models.prompts.build import build
from kvbench.support.errors import Several
from kvbench.tasks.own_file import METRICS, OwnFile
from kvbench.tasks.task import Sample
from tests.models.tokenizers import TURNS, of_bytes

PLAIN = {"context": "A long text.", "question": "Who?", "answers": ["Anna", "Anna Berg"]}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "A long text."},
    {"role": "assistant", "content": "Read."},
    {"role": "user", "content": "Who?"},
]
PICTURE = [{"type": "text", "text": "Who?"}, {"type": "image_url", "image_url": {"url": "a.png"}}]


def task_of(tmp_path: Path, *lines: Any, **fields: Any) -> OwnFile:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return OwnFile(path=str(path), **fields)


def samples_of(task: Any) -> list[Sample]:
    return list(task.generate(len, range(task.samples)))


def text_of(sample: Sample, template: str | None, evict_after: Any = "prompt", **task: Any) -> tuple[str, str]:
    tokenizer = of_bytes(template=template)
    prompt = build(tokenizer, sample, OwnFile(path="x", **task), 500, evict_after=evict_after)
    return tokenizer.decode(prompt.prefill), tokenizer.decode(prompt.question)


def test_a_line_of_longbench_is_read_as_it_is(tmp_path: Path) -> None:
    line = {"input": "Who?", "context": "A long text.", "answers": ["Anna"], "length": 3, "dataset": "own"}
    (sample,) = samples_of(task_of(tmp_path, line | {"language": "en", "all_classes": None, "_id": "a"}))
    assert (sample.context, sample.question, sample.references) == ("A long text.", "\n\nWho?", ("Anna",))


@pytest.mark.parametrize("metric", sorted(set(METRICS) - {"qa_f1_zh_score", "rouge_zh_score"}))
def test_white_space_around_answers_is_no_part_of_them(tmp_path: Path, metric: str) -> None:
    line = {"context": "A", "answers": [" Paris\n"]}
    task = task_of(tmp_path, line, metric=metric)
    (sample,) = samples_of(task)
    assert sample.references == ("Paris",)
    if metric != "count_score":  # it compares numbers
        assert task.score("Paris", sample) == pytest.approx(1)


def test_parts_of_a_message_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": text} for text in ("Who ", "is it?")]
    (sample,) = samples_of(task_of(tmp_path, {"messages": [{"role": "user", "content": parts}], "answers": ["A"]}))
    assert sample.question == "Who is it?"


def test_messages_read_as_transformers_renders_them(tmp_path: Path) -> None:
    (sample,) = samples_of(task_of(tmp_path, {"messages": TALK, "answers": ["Anna"]}))
    rendered = of_bytes(template=TURNS).apply_chat_template(TALK, tokenize=False, add_generation_prompt=True)
    assert text_of(sample, TURNS) == (rendered, "")
    before, after = text_of(sample, TURNS, "context")
    assert before + after == rendered and after.startswith("Who?")
    assert text_of(sample, None) == ("Be brief.\n\nA long text.\n\nRead.\n\nWho?", "")
    with pytest.raises(ValueError, match=r"task.truncation=left: messages are not truncated"):
        text_of(sample, TURNS, truncation="left", max_prompt_tokens=100)
    with pytest.raises(ValueError, match=r"the messages begin with a system turn: use model.system=null"):
        build(of_bytes(template=TURNS), sample, OwnFile(path="x"), 500, system="Shout.")


@pytest.mark.parametrize(
    ("metric", "prediction", "value"),
    [
        ("string_match_part", "It was anna berg.", 1),
        ("string_match_all", "It was Anna.", 0.5),
        ("exact_match", " Anna Berg\n", 1),
        ("exact_match", "Anna B.", 0),
        ("qa_f1_score", "Anna Smith", 2 / 3),  # one of two words, the only one of "Anna": 2 * 0.5 * 1 / 1.5
    ],
)
def test_the_metric_is_chosen_by_name(tmp_path: Path, metric: str, prediction: str, value: float) -> None:
    task = task_of(tmp_path, PLAIN, metric=metric)
    assert task.score(prediction, samples_of(task)[0]) == pytest.approx(value)


def test_equal_contexts_share_a_prefill(tmp_path: Path) -> None:
    talk = {"messages": TALK, "answers": ["Anna"]}
    asked_again = {"messages": [*TALK[:-1], {"role": "user", "content": "When?"}], "answers": ["1912"]}
    task = task_of(tmp_path, PLAIN, talk, PLAIN | {"question": "When?"}, asked_again, PLAIN | {"context": "Another."})
    assert [task.context_of(sample) for sample in range(5)] == [0, 1, 0, 1, 4]


def test_a_cell_depends_on_the_contents_alone(tmp_path: Path) -> None:
    before = task_of(tmp_path, PLAIN).described()
    (tmp_path / "elsewhere").mkdir()
    assert task_of(tmp_path / "elsewhere", PLAIN).described() == before
    edited = task_of(tmp_path, PLAIN | {"question": "Whom?"}).described()
    assert {name for name in edited if edited[name] != before[name]} == {"data_sha256"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 3: not JSON"),
        ('["a"]', "line 3: not a JSON object but a list"),
        ({"context": "A", "answers": []}, r"its answers are \[\]"),
        ({"context": "A", "answer": "B"}, "unknown key 'answer': do you mean answers"),
        ({"context": "A", "questions": "Q", "answers": ["B"]}, "unknown key 'questions': do you mean question"),
        ({"context": "A", "query": "Q", "answers": ["B"]}, "unknown key 'query': do you mean question"),
        ({"context": "A", "question": "Q", "input": "Q", "answers": ["B"]}, "question and input, which both are"),
        ({"context": "A"}, "it has no answers, only context"),
        ({"context": " ", "answers": ["B"]}, "its context is empty"),
        ({"context": "A", "question": 3, "answers": ["B"]}, "its question is a number, not a text"),
        ({"messages": TALK, "context": "A", "answers": ["B"]}, "messages and also a context"),
        ({"messages": [], "answers": ["B"]}, "a list of at least one object"),
        ({"messages": TALK[:3], "answers": ["B"]}, "allowed: the last by user"),
        ({"messages": [TALK[1], TALK[0], TALK[3]], "answers": ["B"]}, "system only as the first"),
        ({"messages": [{"role": "bot", "content": "A"}], "answers": ["B"]}, "role 'bot': allowed: system, user"),
        ({"messages": [{"role": "user", "content": ["A"]}], "answers": ["B"]}, "its content is a list, not a text"),
        (
            {"messages": [{"role": "user", "content": PICTURE}], "answers": ["B"]},
            "a part of the type image_url: only text",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(ValueError, match=rf"task.path=.*mine.jsonl: .*{message}") as refused:
        samples_of(task_of(tmp_path, PLAIN, line))
    assert "\n" not in str(refused.value)


def test_all_bad_lines_are_named_before_anything_is_planned(tmp_path: Path) -> None:
    """Of the samples that were asked for; the first five, one a line."""
    bad = ["{", {"context": " ", "answers": ["B"]}, *[{"context": "A"}] * 5]
    task = task_of(tmp_path, PLAIN, *bad)
    for read in (lambda: task.described(), lambda: samples_of(task)):
        with pytest.raises(Several, match=r"mine\.jsonl: 7 lines cannot be read; a line is {") as refused:
            read()
        _, *named = refused.value.lines
        assert [line.split(":")[0] for line in named] == [
            "line 3",
            "line 5",
            "line 7",
            "line 9",
            "line 11",
            "and 2 more",
        ]
        assert named[1] == "line 5: its context is empty"
    assert task_of(tmp_path, PLAIN, *bad, samples=1).described()["name"] == "jsonl/mine"


def test_an_unknown_key_may_go_into_metadata(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown key 'page': .*leave the key out, or put it into metadata"):
        samples_of(task_of(tmp_path, PLAIN | {"page": 3}))
    assert len(samples_of(task_of(tmp_path, PLAIN | {"metadata": {"page": 3}}))) == 1


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"task.path=nowhere.jsonl: no such file; a line is {"):
        _ = OwnFile(path="nowhere.jsonl").data_sha256
    with pytest.raises(ValueError, match=r"mine\.jsonl has no lines"):
        _ = task_of(tmp_path, "").data_sha256
    with pytest.raises(ValueError, match=r"task\.metric=f1 of jsonl: allowed: string_match_all"):
        task_of(tmp_path, PLAIN, metric="f1")
