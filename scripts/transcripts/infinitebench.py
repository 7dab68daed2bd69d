"""InfiniteBench: `create_prompt` and `get_pred` of eval_yarn_mistral.py, with a model that only records."""

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from scripts.transcripts.stand_ins import Recorder, empty, load
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.made_up import members
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


def transcripts(checkout: Path, root: Path, limits: tuple[int, ...] = LIMITS) -> Iterator[tuple[str, Transcript]]:
    """Every task and row of `root`; prompt i is cut to limit i."""
    empty("rouge", "jieba", "yarn_mistral", "yarn_mistral.modeling_mistral_yarn", "args")
    tables = json.loads((root / "infinitebench" / "prompts.json").read_text("utf-8"))
    names = ("gpt4", "kimi", "claude2", "yarn_mistral")
    sys.modules["prompt"] = types.SimpleNamespace(  # type: ignore[assignment]
        **{f"{name}_templates": tables["yarn_mistral_templates"] for name in names}
    )
    sys.path.insert(0, str(checkout / "src"))
    utils = load(checkout / "src" / "eval_utils.py", "eval_utils")
    script = load(checkout / "src" / "eval_yarn_mistral.py", "infinitebench_eval")
    for member in members("infinitebench"):
        if not (root / "infinitebench" / f"{member}.jsonl").is_file():
            continue
        examples = utils.load_data(member, root / "infinitebench")
        for family in FAMILIES:
            for number, limit in enumerate(limits):
                model, tok = Chunked(), tokenizer(family)
                tok.pad_token = tok.eos_token
                script.TRUNCATE_LEN = limit
                text = utils.create_prompt(dict(examples[number]), member, "yarn-mistral", root)
                script.get_pred(model, tok, text, utils.DATA_NAME_TO_MAX_NEW_TOKENS[member])
                (asked,) = model.asked
                name = case(f"infinitebench/{member}", family, "raw", number)
                ids = [*model.read, *asked["ids"]]
                yield name, transcript(ids, None, [asked["eos_token_id"]], asked["max_new_tokens"])
