"""The training script: a killed and resumed run ends where an uninterrupted one does; words and tokenizer as said."""

import hashlib
import io
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_reference_model.py"
PLAN = [
    {"name": "copy", "steps": 4, "rate": 0.001, "shapes": [[48, 3, 1.0]], "shares": {"copying": 0.5, "sets": 0.5}},
    {
        "name": "families",
        "steps": 7,
        "rate": 0.001,
        "shapes": [[210, 2, 0.5], [320, 1, 0.5]],
        "shares": {"single/noise": 0.5, "values/essay": 0.5, "common": 0.5, "tracking": 0.5, "text": 0.5},
        "jumps": 0.5,
        "evicted": 0.5,
        "last_rate": 0.0,
    },
]
SIZES = ("--vocabulary", "650", "--hidden", "32", "--layers", "1", "--query-heads", "2", "--kv-heads", "1")
TINY = (*SIZES, "--head-dim", "16", "--inner", "32")


def command(out: Path, *arguments: str) -> list[str]:
    return ["--out", str(out), *TINY, "--plan", str(out.parent / "plan.json"), *arguments]


def train(out: Path, *arguments: str) -> str:
    """What a run in this process prints."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.syspath_prepend(str(SCRIPT.parent))
        runpy.run_path(str(SCRIPT))["main"](command(out, *arguments))
    return printed.getvalue()


def train_apart(out: Path, *arguments: str) -> str:
    """What a run in a process of its own prints, which knows nothing but the files."""
    run = [sys.executable, str(SCRIPT), *command(out, *arguments)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sources(folder: Path) -> tuple[str, ...]:
    return ("--words", str(folder / "few.json"), "--books", str(folder / "books"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run from start to end, over few words."""
    folder = tmp_path_factory.mktemp("run")
    words = {"adjectives": ["blue", "teeny-tiny", "slow"], "nouns": [f"noun{letter}" for letter in "abcdefghijkl"]}
    (folder / "few.json").write_text(json.dumps(words), encoding="utf-8")
    (folder / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    (folder / "books").mkdir()
    for name in "abc":
        book = " ".join(f"Nobody saw house {index} of the road {name}." for index in range(500))
        (folder / "books" / f"{name}.txt").write_text(book, encoding="utf-8")
    assert train(folder / "whole", *sources(folder)).startswith("finished at step 11")
    return folder


def state(folder: Path) -> tuple[dict[str, torch.Tensor], list]:
    loaded = torch.load(folder / "checkpoint.pt", weights_only=True)
    at = loaded["at"]
    return loaded["model"], at[:2]  # all but the seconds


def curve(folder: Path) -> list[dict]:
    lines = (json.loads(line) for line in (folder / "curve.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


@pytest.mark.parametrize("resume", [train, pytest.param(train_apart, marks=pytest.mark.slow)])
def test_a_resumed_run_ends_like_an_uninterrupted_one(whole: Path, resume: Callable[..., str]):
    resumed = whole / resume.__name__
    assert train(resumed, *sources(whole), "--max-steps", "7").startswith("stopped at step 7")
    # what a run wrote after its last checkpoint is lost in a kill, and a half-written checkpoint is no checkpoint
    with (resumed / "curve.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": 9, "stage": "families", "stage_step": 5, "tokens": 0}) + "\n")
    (resumed / "checkpoint.part").write_bytes(b"half")
    # the word lists are in the folder
    assert resume(resumed, "--books", str(whole / "books")).startswith("finished at step 11")
    (weights, at), (expected_weights, expected_at) = state(resumed), state(whole / "whole")
    assert at == expected_at
    assert weights.keys() == expected_weights.keys()
    assert all(torch.equal(weights[name], expected_weights[name]) for name in weights)
    assert [line["step"] for line in curve(resumed)] == sorted({line["step"] for line in curve(resumed)})
    assert curve(resumed)[-1]["tokens"] == curve(whole / "whole")[-1]["tokens"]


def test_a_run_says_which_books_it_read_and_which_it_held_back(whole: Path):
    described = json.loads((whole / "whole" / "run.json").read_text(encoding="utf-8"))
    digests = {name: hashlib.sha256((whole / "books" / name).read_bytes()).hexdigest() for name in ("a.txt", "c.txt")}
    assert described["books"].keys() == {"a.txt", "b.txt"} and described["books"]["a.txt"] == digests["a.txt"]
    assert described["held_back"] == {"c.txt": digests["c.txt"]}


def test_numbers_are_four_tokens_and_any_text_survives(whole: Path):
    tokenizer = Tokenizer.from_file(str(whole / "whole" / "tokenizer.json"))
    assert tokenizer.encode(" 8090293").tokens == ["Ġ80", "90", "29", "3"]
    text = "naïve 針 \n\t🙂 {}"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))


def test_an_exported_model_is_that_of_the_run_with_a_card(
    whole: Path, scripts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from reference_model import export  # type: ignore[import-not-found]
    from transformers import AutoModelForCausalLM

    books = dict.fromkeys(("books", "stretches", "tokens", "skipped", "window", "difference", "low", "high"), 7)
    measured = {"figures": [], "policies": [], "perplexity": books | {"perplexity_full": 8, "perplexity_window": 9}}
    monkeypatch.setattr(export, "measure", lambda *arguments: measured)
    export.export(whole / "whole", whole / "exported", 1, None)
    model = AutoModelForCausalLM.from_pretrained(whole / "exported")
    assert model.dtype == torch.bfloat16
    trained, _ = state(whole / "whole")
    assert all(torch.equal(model.state_dict()[name], trained[name].bfloat16()) for name in trained)
    card = (whole / "exported" / "README.md").read_text(encoding="utf-8")
    assert "1 layers, 2 query heads over 1 KV heads of size\n16" in card and "| families | 320 | 7 | 11 |" in card


def test_the_same_fifth_of_the_words_is_held_out_of_training(scripts: None):
    from reference_model.words import Words  # type: ignore[import-not-found]

    nouns = [f"noun{index}" for index in range(40)]
    words = Words.of(["blue", "slow"], nouns)
    adjectives, trained = words.trained
    assert len(words.held_out) == 8 and not words.held_out & {*adjectives, *trained}
    assert words.held_out == Words.of(["slow", "blue"], nouns[::-1]).held_out


def test_missing_word_lists_are_named(scripts: None, tmp_path: Path):
    from reference_model.words import load_words  # type: ignore[import-not-found]

    with pytest.raises(ValueError, match=r"--words=nowhere\.json"):
        load_words(tmp_path, Path("nowhere.json"))
