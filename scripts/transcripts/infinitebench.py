"""InfiniteBench: `create_prompt` and `get_pred` of eval_yarn_mistral.py, with a model that only records.

Generated rows are kvbench's: the official generator sets no seed.
"""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kvbench.tasks.infinitebench import SyntheticInfiniteBench
from scripts.transcripts.stand_ins import Recorder, empty, load
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.made_up import SAMPLES, members
from tests.transcripts.transcript import LIMITS, Transcript, case, transcript


class Chunked(Recorder):
    """The model as `chunk_generate` calls it: chunks of the prompt without its last token, then `generate`."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []
        self.model = types.SimpleNamespace(forward=self.forward)

    def forward(self, input_ids: Any, **_: Any) -> Any:
        self.read += input_ids[0].tolist()
        cached = torch.zeros(1, 1, len(self.read), 1)
        return types.SimpleNamespace(past_key_values=((cached, cached),))


class Tokens:
    """Counts tokens as kvbench does."""

    def __init__(self, tok: Any) -> None:
        self.tok = tok

    def __call__(self, text: str) -> int:
        return len(self.tok(text, add_special_tokens=False).input_ids)


class Generated(SyntheticInfiniteBench):
    """The generated rows instead of their prompts."""

    def row_reader(self, tokens: Any) -> Any:
        return lambda _, row: row


def transcripts(checkout: Path, root: Path, limits: tuple[int, ...] = LIMITS) -> Iterator[tuple[str, Transcript]]:
    """Every task and row of `root`; prompt i is cut to limit i. Then rows that are generated."""
    utils, script = _official(checkout, root)
    for member in members("infinitebench"):
        if not (root / "infinitebench" / f"{member}.jsonl").is_file():
            continue
        examples = utils.load_data(member, root / "infinitebench")
        for family in FAMILIES:
            for number, limit in enumerate(limits):
                name = case(f"infinitebench/{member}", family, "raw", number)
                yield name, _asked(utils, script, member, dict(examples[number]), family, limit, root)
    for member in members("infinitebench_synthetic"):
        for family in FAMILIES:
            task = Generated(
                name=member,
                member=member,
                max_new_tokens=utils.DATA_NAME_TO_MAX_NEW_TOKENS[member],
                samples=SAMPLES,
                seed=42,
                root=str(root),
            )
            for number, row in enumerate(task.generate(Tokens(tokenizer(family)), range(SAMPLES))):  # type: ignore[arg-type]
                name = case(f"infinitebench_synthetic/{member}", family, "raw", number)
                yield name, _asked(utils, script, member, row, family, limits[0], root)


def _official(checkout: Path, root: Path) -> tuple[Any, Any]:
    """Its modules, with templates of our own."""
    empty("rouge", "jieba", "yarn_mistral", "yarn_mistral.modeling_mistral_yarn", "args")
    tables = json.loads((root / "infinitebench" / "prompts.json").read_text("utf-8"))
    names = ("gpt4", "kimi", "claude2", "yarn_mistral")
    sys.modules["prompt"] = types.SimpleNamespace(  # type: ignore[assignment]
        **{f"{name}_templates": tables["yarn_mistral_templates"] for name in names}
    )
    sys.path.insert(0, str(checkout / "src"))
    utils = load(checkout / "src" / "eval_utils.py", "eval_utils")
    return utils, load(checkout / "src" / "eval_yarn_mistral.py", "infinitebench_eval")


def _asked(utils: Any, script: Any, member: str, row: Any, family: str, limit: int, root: Path) -> Transcript:
    """What is asked for a row."""
    model, tok = Chunked(), tokenizer(family)
    tok.pad_token = tok.eos_token
    script.TRUNCATE_LEN = limit
    text = utils.create_prompt(row, member, "yarn-mistral", root)
    script.get_pred(model, tok, text, utils.DATA_NAME_TO_MAX_NEW_TOKENS[member])
    (asked,) = model.asked
    return transcript([*model.read, *asked["ids"]], None, [asked["eos_token_id"]], asked["max_new_tokens"])
