"""LongBench, LongBench-E and v2: `get_pred` of both pred.py, with a model that only records."""

import json
import os
import types
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts.transcripts.stand_ins import Recorder, empty, load
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.made_up import members
from tests.transcripts.transcript import LIMITS, Transcript, case, transcript

MODELS = {"raw": "mistral", "inst": "llama2-7b-chat-4k"}
"""A name that `build_chat` of pred.py knows no template for, and one that it does."""


def rows(path: Path) -> list[dict[str, Any]]:
    """Of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def version_1(checkout: Path, root: Path, limits: tuple[int, ...] = LIMITS) -> Iterator[tuple[str, Transcript]]:
    """Every task and row of `root`; prompt i is cut to limit i, or to the last one."""
    empty("datasets", "llama_flash_attn_monkey_patch")
    pred = load(checkout / "LongBench" / "pred.py", "longbench_pred")
    pred.dist = types.SimpleNamespace(destroy_process_group=lambda: None)
    config = root / "longbench" / "config"
    templates = json.loads((config / "dataset2prompt.json").read_text("utf-8"))
    lengths = json.loads((config / "dataset2maxlen.json").read_text("utf-8"))
    for benchmark, suffix in (("longbench", ""), ("longbench_e", "_e")):
        for member in members(benchmark):
            path = root / "longbench" / f"{member}{suffix}.jsonl"
            for family in FAMILIES if path.is_file() else ():
                for template, model_name in MODELS.items():
                    for number, row in enumerate(rows(path)[: len(limits)]):
                        model, tok = Recorder(), tokenizer(family)
                        pred.load_model_and_tokenizer = lambda *_, model=model, tok=tok: (model, tok)
                        arguments = limits[number], lengths[member], templates[member], member, None, model_name
                        with TemporaryDirectory() as folder:
                            pred.get_pred(0, 1, [row], *arguments, {model_name: ""}, f"{folder}/out.jsonl")
                        (asked,) = model.asked
                        least = asked.get("min_length", 0) and asked["min_length"] - len(asked["ids"])
                        name = case(f"{benchmark}/{member}", family, template, number)
                        stop = asked.get("eos_token_id")
                        yield name, transcript(asked["ids"], None, stop, asked["max_new_tokens"], least)


def version_2(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """The messages that pred.py sends, in the chat template that the server puts around them; --cot with both
    requests, the answer to the first is `REASONING`.
    """
    empty("datasets", "openai", "tiktoken")
    os.chdir(root / "longbench_v2")
    (root / "longbench_v2" / "config").mkdir()
    (root / "longbench_v2" / "config" / "model2path.json").write_text('{"m": "m"}')
    (root / "longbench_v2" / "config" / "model2maxlen.json").write_text("{}")
    for name in ("0shot_rag", "0shot_no_context"):
        (root / "longbench_v2" / "prompts" / f"{name}.txt").write_text("")
    pred = load(checkout / "pred.py", "longbench_v2_pred")
    for family in FAMILIES:
        for template in ("chatml", "trimmed"):
            tok = tokenizer(family, template)
            for number, row in enumerate(rows(root / "longbench_v2" / "data.jsonl")):
                for task, reasons in (("longbench_v2", False), ("longbench_v2_cot", True)):
                    sent: list[dict[str, Any]] = []
                    pred.OpenAI = lambda sent=sent, **_: client(sent)
                    pred.AutoTokenizer = types.SimpleNamespace(from_pretrained=lambda *_, tok=tok, **__: tok)
                    pred.maxlen_map["m"] = LIMITS[number]
                    args = types.SimpleNamespace(model="m", rag=0, no_context=False, cot=reasons)
                    with open(os.devnull, "w") as out:
                        pred.get_pred([dict(row)], args, out)
                    for request, asked in enumerate(sent):
                        ids = tok.apply_chat_template(asked["messages"], add_generation_prompt=True)
                        name = case(task if request == 0 else f"{task}/answer", family, template, number)
                        yield name, transcript(ids, None, None, asked["max_tokens"])


REASONING = " It is {word0}, \u5929.\n"


def client(sent: list[dict[str, Any]]) -> Any:
    """An OpenAI client that records and reasons."""

    def create(**asked: Any) -> Any:
        sent.append(asked)
        message = types.SimpleNamespace(content=REASONING)
        return types.SimpleNamespace(choices=[types.SimpleNamespace(message=message)])

    completions = types.SimpleNamespace(create=create)
    return types.SimpleNamespace(chat=types.SimpleNamespace(completions=completions))
