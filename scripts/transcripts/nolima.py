"""NoLiMa: run_tests.py as it is on one book; its requests to a server in the chat template that the server puts around
them. Books are read in the order of their names, there in that of the file system.
"""

import os
import runpy
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scripts.transcripts.stand_ins import empty
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.transcript import NOLIMA_TOKENS, Transcript, case, transcript

PROMPTS = 10
"""The first ones of kvbench, which goes through all tests before it takes another depth."""
DEPTHS, STRIDE = 26, 7
"""Depths of a test, and how far kvbench goes from one to the next."""


def transcripts(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """Prompts of the first book, with needles at several depths."""
    empty("tiktoken", "vertexai", "vertexai.preview", "vertexai.preview.tokenization", "langchain_aws")
    empty("vertexai.preview.generative_models", "google", "google.genai", "google.genai.types", "google.genai.errors")
    sys.modules["tenacity"] = types.SimpleNamespace(  # type: ignore[assignment]
        retry=lambda **_: lambda function: function,
        **{name: lambda *_, **__: None for name in ("wait_random", "wait_random_exponential", "stop_after_delay")},
        **{f"retry_if_exception_{name}": lambda *_, **__: None for name in ("type", "message")},
    )
    sent: list[dict[str, Any]] = []

    class Client:
        """A client of a server that records and answers nothing."""

        def __init__(self, **_: Any) -> None:
            self.chat = types.SimpleNamespace(completions=types.SimpleNamespace(create=self.create))

        async def create(self, **asked: Any) -> Any:
            sent.append(asked)
            choice = types.SimpleNamespace(message=types.SimpleNamespace(content="x"), finish_reason="stop")
            usage = types.SimpleNamespace(prompt_tokens=0, completion_tokens=0, total_tokens=0)
            return types.SimpleNamespace(choices=[choice], usage=usage)

    clients = {"AsyncOpenAI": Client, "AsyncAzureOpenAI": Client, "RateLimitError": Exception}
    sys.modules["openai"] = types.SimpleNamespace(**clients)  # type: ignore[assignment]
    sys.path[:0] = [str(checkout / "evaluation"), str(checkout)]
    for family in FAMILIES:
        with TemporaryDirectory() as folder:
            books = Path(folder) / "books"
            books.mkdir()
            shutil.copy(root / "nolima" / "rand_book_1.txt", books)
            sent.clear()
            _run(checkout, root, books, Path(folder), family)
        tests = len(sent) // DEPTHS
        for template in ("chatml", "trimmed"):
            for number in range(PROMPTS):
                step, place = divmod(number, tests)
                asked = sent[place * DEPTHS + (STRIDE * step + place) % DEPTHS]
                tok = tokenizer(family, template)
                ids = tok.apply_chat_template(asked["messages"], add_generation_prompt=True)
                yield case("nolima", family, template, number), transcript(ids, None, None, asked["max_tokens"])


def _run(checkout: Path, root: Path, books: Path, folder: Path, family: str) -> None:
    """All tests on one book, at all depths."""
    import transformers

    for module in ("async_evaluate", "async_api_connector"):  # they hold the tokenizer of the run before
        sys.modules.pop(module, None)
    loader = types.SimpleNamespace(from_pretrained=lambda *_, **__: tokenizer(family))
    transformers.AutoTokenizer = loader  # type: ignore[misc, assignment]
    made, os.makedirs = os.makedirs, lambda path, *_, **__: made(folder / path, exist_ok=True)  # type: ignore[assignment]
    script, configs = checkout / "evaluation" / "run_tests.py", checkout / "evaluation"
    flags = {"config": configs / "run_config" / "multi_test_config_book_4K.yaml", "model_name": "llama_3.3_70b"}
    flags |= {"model_configs_dir": configs / "model_configs", "needle_set_path": root / "nolima" / "needle_set.json"}
    flags |= {"haystack_dir": books, "parent_results_dir": folder / "results", "context_length": str(NOLIMA_TOKENS)}
    sys.argv = [str(script), *(f"--{name}={value}" for name, value in flags.items())]
    runpy.run_path(str(script), run_name="__main__")
    os.makedirs = made
