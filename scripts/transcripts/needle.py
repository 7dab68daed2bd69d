"""The needle heat-map: the testers of LLMTest_NeedleInAHaystack, KVCache-Factory and LAVa, with a model that only
records. Essays are read in the order of their names, there in that of the file system.

The scripts name the tokens that are a full stop by their numbers in the vocabularies of Llama 3 and Mistral:
`Renumbered` gives the tokenizers here these numbers.
"""

import asyncio
import glob
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts.transcripts.stand_ins import Recorder, empty, load
from tests.transcripts.families import BLANK, FAMILIES, model_ends, tokenizer
from tests.transcripts.made_up import NEEDLES
from tests.transcripts.transcript import Transcript, case, transcript

PROVIDERS = {"bytes": ("LLaMA3", {".": 13}), "bytes_bos": ("LLaMA3", {".": 13})}
MISTRAL = "Mistral", {f"{BLANK}.": 842, ".": 28723}
QUESTION = "What is the best thing to do in San Francisco?"
NEEDLE = "\nThe best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day.\n"
"""Those of run.py."""


class Renumbered:
    """A tokenizer with other numbers for some tokens, which change places with those that had them."""

    def __init__(self, tok: Any, numbers: dict[str, int]) -> None:
        self.tok, self.eos_token_id, self.other = tok, tok.eos_token_id, dict[int, int]()
        self.eos_token, self.pad_token, self.unk_token_id = tok.eos_token, None, tok.unk_token_id
        for token, number in numbers.items():
            if (own := tok.convert_tokens_to_ids(token)) is not None:
                self.other |= {own: number, number: own}

    def swap(self, ids: Any) -> list[int]:
        return [self.other.get(int(number), int(number)) for number in ids]

    def encode(self, text: str, **options: Any) -> list[int]:
        return self.swap(self.tok.encode(text, **options))

    def decode(self, ids: Any, **options: Any) -> str:
        return self.tok.decode(self.swap(ids), **options)

    def convert_tokens_to_ids(self, token: str) -> Any:
        return self.tok.convert_tokens_to_ids(token)

    def __call__(self, text: str, **_: Any) -> dict[str, Any]:
        return {"input_ids": torch.tensor([self.swap(self.tok(text).input_ids)])}


class Model(Recorder):
    """The model behind the scripts on eviction."""

    def __init__(self, ends: list[int]) -> None:
        super().__init__()
        self.generation_config = types.SimpleNamespace(eos_token_id=ends)

    def eval(self) -> "Model":
        return self


def official(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """The texts of the two user turns, a blank line between them, as tokens: the ids are a server's affair."""
    empty("anthropic", "openai", "tiktoken", "cohere", "langchain", "langchain.prompts", "langchain_openai")
    empty("langchain_anthropic", "langchain_cohere", "needlehaystack", "needlehaystack.evaluators")
    sys.modules["needlehaystack"].__path__ = [str(checkout / "needlehaystack")]
    _sort_files()
    from needlehaystack.llm_needle_haystack_tester import LLMNeedleHaystackTester  # type: ignore[import-not-found]
    from needlehaystack.providers import OpenAI  # type: ignore[import-not-found]

    for family in FAMILIES:
        tok, sent = tokenizer(family), list[Any]()

        class Provider(OpenAI):
            """The provider with another tokenizer, without a server."""

            def __init__(self, tok: Any = tok, sent: list[Any] = sent) -> None:
                self.tokenizer = types.SimpleNamespace(
                    encode=partial(tok.encode, add_special_tokens=False), decode=tok.decode
                )
                self.model_name, self.sent = "", sent

            async def evaluate_model(self, prompt: Any) -> str:
                self.sent.append(prompt)
                return ""

        Provider.__abstractmethods__ = frozenset()
        for number, (length, depth) in enumerate(NEEDLES):
            evaluator = types.SimpleNamespace(evaluate_response=lambda _: 0)
            options = {"needle": NEEDLE, "retrieval_question": QUESTION, "context_lengths": [length]}
            options |= {"haystack_dir": str(root / "paul_graham_essays"), "document_depth_percents": [depth]}
            options |= {"save_results": False, "save_contexts": False, "print_ongoing_status": False}
            asyncio.run(LLMNeedleHaystackTester(Provider(), evaluator, **options).evaluate_and_log(length, depth))
            texts = [message["content"] for message in sent[-1] if message["role"] == "user"]
            most = OpenAI.DEFAULT_MODEL_KWARGS["max_tokens"]
            yield (
                case("needle/official", family, "raw", number),
                transcript(tok("\n\n".join(texts)).input_ids, None, None, most),
            )


def pyramidkv(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """KVCache-Factory."""
    import transformers

    assert transformers.AutoModelForCausalLM  # imported before `accelerate` is empty
    empty("tiktoken", "anthropic", "openai", "tensor_parallel", "pyramidkv", "pyramidkv.monkeypatch", "accelerate")
    script = load(checkout / "run_needle_in_haystack.py", "needle_script")
    yield from _book("needle/pyramidkv", script, root, model_name="m", method="full")


def lava(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """LAVa."""
    empty("tiktoken", "adaptive_snapkv", "adaptive_snapkv.monkeypatch", "adaptive_snapkv.monkeypatch.monkeypatch")
    path = checkout / "experiments" / "needle_in_haystack" / "run_needle_in_haystack.py"
    script = load(path, "needle_script")
    script.args = types.SimpleNamespace(model_path="", use_fast_tokenizer=True, attn_implementation="")
    yield from _book("needle/lava", script, root, model_path="m")


def _book(task: str, script: Any, root: Path, **options: Any) -> Iterator[tuple[str, Transcript]]:
    _sort_files()
    for family in FAMILIES:
        provider, numbers = PROVIDERS.get(family, MISTRAL)
        tok = tokenizer(family)
        other = Renumbered(tok, numbers)
        for number, (length, depth) in enumerate(NEEDLES):
            model = Model(model_ends(tok))
            for name, value in (("AutoTokenizer", other), ("AutoModelForCausalLM", model)):
                setattr(script, name, types.SimpleNamespace(from_pretrained=lambda *_, value=value, **__: value))
            tester = script.LLMNeedleHaystackTester(
                haystack_dir=str(root / "paul_graham_essays"),
                model_provider=provider,
                model_version="v",
                context_lengths=[length],
                document_depth_percents=[depth],
                save_results=False,
                save_contexts=False,
                print_ongoing_status=False,
                **options,
            )
            tester.evaluate_and_log(length, depth)
            (asked,) = model.asked
            yield (
                case(task, family, "raw", number),
                transcript(other.swap(asked["ids"]), None, other.swap(asked["eos_token_id"]), asked["max_new_tokens"]),
            )


def _sort_files() -> None:
    """List files in the order of their names."""
    listed = glob.glob
    glob.glob = lambda *arguments, **options: sorted(listed(*arguments, **options))
