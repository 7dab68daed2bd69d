"""R-KV: run_math.py as it is, with a model that only records, on the problems that kvbench reads."""

import json
import runpy
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts.transcripts.longbench import rows
from scripts.transcripts.stand_ins import Recorder, empty
from tests.transcripts.families import FAMILIES, model_ends, tokenizer
from tests.transcripts.made_up import MATH
from tests.transcripts.transcript import Transcript, case, transcript

FILES = {"math500": ("math", "problem"), "aime24": ("aime24", "question"), "aime25": ("aime24", "question")}
"""The data set that the script takes a file for, and its field. AIME 2025 is none of R-KV's."""


class Model(Recorder):
    """The model behind the script."""

    def __init__(self) -> None:
        super().__init__()
        self.config: dict[str, Any] = {}

    def eval(self) -> None: ...


def transcripts(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """All problems."""
    import transformers

    empty("rkv", "rkv.monkeypatch")
    for name, (dataset, field) in FILES.items():
        for family in FAMILIES:
            model, tok = Model(), tokenizer(family)
            for loaded, value in (("AutoTokenizer", tok), ("AutoModelForCausalLM", model)):
                loader = types.SimpleNamespace(from_pretrained=lambda *_, value=value, **__: value)
                setattr(transformers, loaded, loader)
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"{dataset}.jsonl"
                problems = [{field: row["problem"], "answer": row["answer"]} for row in rows(root / MATH[name])]
                path.write_text("".join(json.dumps(row) + "\n" for row in problems), "utf-8")
                sys.argv = ["run_math.py", "--dataset_path", str(path), "--save_path", f"{folder}/out.jsonl"]
                sys.argv += ["--model_path", "llama", "--method", "fullkv"]
                runpy.run_path(str(checkout / "run_math.py"), run_name="__main__")
            for number, asked in enumerate(model.asked):
                most = asked["max_length"] - len(asked["ids"])
                stop = asked.get("eos_token_id")
                assert stop is None or sorted(stop) == sorted(model_ends(tok))
                yield case(f"{name}/rkv", family, "raw", number), transcript(asked["ids"], None, stop, most)
