"""A tokenizer read from its files as `kvbench.models.prompts` uses it: transformers' own classes import torch.

It is `tokenizer.json` as the package tokenizers runs it, and the chat template as transformers renders it: jinja2 in a
sandbox, with `raise_exception` and `tojson` without ASCII escapes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from kvbench.models.loading.spec import read_json
from kvbench.models.loading.tokenizer_file import check_growth
from kvbench.support.errors import MissingFile, is_panic


@dataclass(frozen=True)
class Encoding:
    """Token ids of a text, and the characters that each token covers; of several texts a list of each."""

    input_ids: list[Any]
    offset_mapping: list[Any]


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """The tokenizer of a folder. `chat_template` is None where it has none."""

    folder: Path
    backend: Any
    bos_token: str | None
    eos_token: str | None
    chat_template: str | None

    @classmethod
    def read(cls, folder: Path) -> "Tokenizer":
        """Read `tokenizer.json`, `tokenizer_config.json` and the template. Raises MissingFile for broken files,
        UserError for rules that make too much of a text."""
        from tokenizers import Tokenizer as Backend

        check_growth(folder)
        try:
            backend = Backend.from_file(str(folder / "tokenizer.json"))
        except BaseException as error:
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            raise MissingFile(f"{folder / 'tokenizer.json'} cannot be read: {str(error).splitlines()[0]}") from error
        backend.no_truncation()
        backend.no_padding()
        config = read_json(folder / "tokenizer_config.json")
        names = {**read_json(folder / "special_tokens_map.json"), **config}
        bos, eos = (_text(names.get(f"{name}_token")) for name in ("bos", "eos"))
        return cls(folder, backend, bos, eos, _template(folder, config))

    @cached_property
    def bos_token_id(self) -> int | None:
        return None if self.bos_token is None else self.backend.token_to_id(self.bos_token)

    @cached_property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self.backend.token_to_id(self.eos_token)

    def __call__(
        self, text: str | list[str], add_special_tokens: bool = True, return_offsets_mapping: bool = False
    ) -> Encoding:
        if isinstance(text, list):
            encodings = self.backend.encode_batch(text, add_special_tokens=add_special_tokens)
            return Encoding([list(each.ids) for each in encodings], [list(each.offsets) for each in encodings])
        encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
        return Encoding(list(encoding.ids), list(encoding.offsets))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def get_chat_template(self, tools: Sequence[Any] | None = None) -> str:
        assert self.chat_template is not None
        return self.chat_template

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tokenize: bool = False,
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation. Raises what the template raises."""
        assert not tokenize
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _refuse
        special = {name: token for name in ("bos_token", "eos_token") if (token := getattr(self, name)) is not None}
        return environment.from_string(chat_template or self.get_chat_template()).render(
            messages=conversation, add_generation_prompt=add_generation_prompt,
            **{"tools": None, "documents": None} | special | variables,
        )  # fmt: skip


def _text(token: Any) -> str | None:
    """Return a special token as a text; older files write it as an object."""
    return token.get("content") if isinstance(token, dict) else token


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the template in a file of its own, or in the configuration: one text, or several by name."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {part.get("name"): part.get("template") for part in template if isinstance(part, dict)}
        return named.get("default")
    return template


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)
