"""SCBench as officially: `get_pred` of run_scbench.py and `GreedySearch`, whose model ends each answer at once.

`none` is the mode of one context and separate requests, `gold` that of turns with right answers, `own` that of turns
with answers of the model's own, by `GreedySearch_vLLM`: they are empty here, and an end of sequence follows each.
"""

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from kvbench.extras.scbench_official.tests.rows import MEMBERS, rows
from scripts.transcripts.stand_ins import empty, load
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.transcript import SCBENCH_LIMITS, Transcript, case, transcript

TEMPLATES = ("raw", "trimmed")


class Model:
    """The model as `GreedySearch` uses it."""

    device = "cpu"

    def __init__(self, ends: int, tokens: int) -> None:
        self.logits = torch.zeros(1, 1, tokens)
        self.logits[..., ends] = 1
        self.config = types.SimpleNamespace(eos_token_id=[])
        self.model = types.SimpleNamespace(layers=[types.SimpleNamespace(self_attn=None)])
        self.cache = types.SimpleNamespace(clear_temp_kv_cache=lambda: None)

    def eval(self) -> None: ...

    def apply(self, _: Any) -> None: ...

    def prepare_inputs_for_generation(self, _: Any) -> dict[str, Any]:
        return {"past_key_values": self.cache}

    def _prepare_cache_for_generation(self, _: Any, inputs: dict[str, Any], *__: Any) -> None:
        inputs["past_key_values"] = self.cache

    def __call__(self, **_: Any) -> Any:
        return types.SimpleNamespace(logits=self.logits, past_key_values=self.cache)


class Server:
    """vLLM as `GreedySearch_vLLM` uses it: it answers nothing, and records what it reads and the limits of answers."""

    def __init__(self) -> None:
        self.parts: list[tuple[list[int], int]] = []

    def generate(self, prompt_token_ids: list[int], sampling_params: Any) -> Any:
        self.parts.append((prompt_token_ids, sampling_params.max_tokens))
        return [types.SimpleNamespace(outputs=[types.SimpleNamespace(text="")])]


def transcripts(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """Every turn of both rows; what is read first is cut to `SCBENCH_LIMITS`."""
    empty("tempdir", "args", "datasets", "evaluate", "minference", "vllm", "compute_scores", "tree_sitter_languages")
    empty("repo_qa_utils")
    sys.modules["vllm"].SamplingParams = types.SimpleNamespace  # type: ignore[attr-defined]
    transformers.SinkCache = None  # type: ignore[attr-defined]
    transformers.cache_utils.SinkCache = None  # type: ignore[attr-defined]
    sys.path.insert(0, str(checkout / "scbench"))
    utils = load(checkout / "scbench" / "eval_utils.py", "eval_utils")
    script = load(checkout / "scbench" / "run_scbench.py", "run_scbench")

    class Reader(utils.GreedySearch):
        """Records what is read before each answer, and how long that may be."""

        def read(self, ids: Any, most: Any) -> None:
            self.parts = [*getattr(self, "parts", []), (ids.reshape(-1).tolist(), most)]

        def _encode(self, input_ids: Any, max_length: Any = None) -> Any:
            self.read(input_ids, max_length)
            return super()._encode(input_ids, max_length)

        def _decode(self, input_ids: Any, max_length: int = 100, **options: Any) -> Any:
            self.read(input_ids, max_length)
            return super()._decode(input_ids, max_length, **options)

    for member in MEMBERS:
        name = f"scbench_{member}"
        most = utils.DATA_NAME_TO_MAX_NEW_TOKENS[name]
        for family in FAMILIES:
            for template in TEMPLATES:
                tok = tokenizer(family, template)
                for mode in ("none", "gold"):
                    for number, row in enumerate(rows(member)):
                        reader = Reader(Model(tok.eos_token_id, len(tok)), tok)
                        options = {"use_chat_template": template != "raw", "scdq_mode": mode == "none"}
                        limit = SCBENCH_LIMITS[number]
                        script.get_pred(reader, row, name, most, limit, "dense", tok, **options)
                        context = reader.parts[0][0]
                        read = list(context)
                        for turn, (ids, tokens) in enumerate(reader.parts[1:] if mode == "none" else reader.parts):
                            if mode == "none":
                                read = [*context, *ids]
                            elif turn:
                                read = [*read, *ids]
                            label = case(f"scbench_official/{member}/{mode}", family, template, 3 * number + turn)
                            yield label, transcript(read, len(context), None, tokens)
                for number, row in enumerate(rows(member)):
                    server = Server()
                    options = {"use_chat_template": template != "raw", "disable_golden_context": True}
                    model, limit = utils.GreedySearch_vLLM(server, tok), SCBENCH_LIMITS[number]
                    script.get_pred(model, row, name, most, limit, "vllm", tok, **options)
                    for turn, (ids, tokens) in enumerate(server.parts):
                        label = case(f"scbench_official/{member}/own", family, template, 3 * number + turn)
                        yield label, transcript(ids, len(server.parts[0][0]), None, tokens)
