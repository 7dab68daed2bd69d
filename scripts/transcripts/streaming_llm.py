"""PG19: examples/eval_long_ppl.py of StreamingLLM as it is, with a model that only records."""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from scripts.transcripts.stand_ins import load
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.transcript import Transcript, case, transcript


def transcripts(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """All tokens of each book, one read at a time; the last one is scored and not read."""
    for family in FAMILIES:
        for number, path in enumerate(sorted((root / "pg19").glob("*.txt"))):
            tok, read = tokenizer(family), list[int]()
            text = path.read_text("utf-8")  # CRLF becomes a newline
            last: list[int] = []

            def model(input_ids: Any, read: list[int] = read, tok: Any = tok, **_: Any) -> Any:
                read.append(int(input_ids[0, 0]))
                return types.SimpleNamespace(logits=torch.zeros(1, len(tok)), past_key_values=None)

            def loss(reduction: str, last: list[int] = last) -> Any:
                return lambda logits, label: (last.append(int(label[0])), torch.zeros(1))[1]

            model.config = types.SimpleNamespace(vocab_size=len(tok), model_type="llama")  # type: ignore[attr-defined]
            with TemporaryDirectory() as folder:
                args = {"dataset_name": "", "task": "", "split": "", "model_name_or_path": "", "output_dir": folder}
                args |= {"enable_start_recent_kv_cache": False, "enable_pos_shift": False, "num_samples": 1}
                namespace = types.SimpleNamespace(**args, num_eval_tokens=None)
                modules: dict[str, Any] = {
                    "datasets": {"load_dataset": lambda *_, text=text, **__: {"text": [text]}},
                    "streaming_llm": {},
                    "streaming_llm.kv_cache": {"StartRecentKVCache": None},
                    "streaming_llm.utils": {
                        "parse_args": lambda namespace=namespace: namespace,
                        "load": lambda _, model=model, tok=tok: (model, tok),
                    },
                }
                sys.modules.update({name: types.SimpleNamespace(**names) for name, names in modules.items()})  # type: ignore[misc]
                kept, torch.nn.CrossEntropyLoss = torch.nn.CrossEntropyLoss, loss  # type: ignore[misc, assignment]
                load(checkout / "examples" / "eval_long_ppl.py", "eval_long_ppl")
                torch.nn.CrossEntropyLoss = kept  # type: ignore[misc]
            yield case("pg19", family, "raw", number), transcript([*read, last[-1]], None, None, 0)
