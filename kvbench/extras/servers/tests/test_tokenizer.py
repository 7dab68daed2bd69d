"""The tokenizer that is read without torch gives the ids and chats of transformers' own."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from kvbench.extras.servers.completions import text_of
from kvbench.extras.servers.tests.stub import FOLDER
from kvbench.extras.servers.tokenizer import Tokenizer
from kvbench.models.prompts.chat import render
from kvbench.support.errors import MissingFile, UserError
from tests.repository import GOLDEN

RULER = GOLDEN / "ruler" / "tokenizer"
TEXTS = ("A few words, 2 numbers.\n", "  blanks", "naïve 漢字 🙂", "<|endoftext|>x", "")
TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "<{{ message.role }}>{{ message.content | tojson }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize("folder", [FOLDER, RULER], ids=["embedded", "ruler"])
def test_ids_and_texts(folder: Path) -> None:
    read, theirs = Tokenizer.read(folder), AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert (read.bos_token, read.eos_token) == (theirs.bos_token, theirs.eos_token)
    assert (read.bos_token_id, read.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    for text in TEXTS:
        for special in (True, False):
            ids = theirs(text, add_special_tokens=special).input_ids
            assert read(text, add_special_tokens=special).input_ids == ids
            assert read.decode(ids) == theirs.decode(ids)
            assert read.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("where", ["configuration", "file"])
def test_chats(tmp_path: Path, where: str) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((FOLDER / name).read_bytes())
    if where == "file":
        (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    else:
        config = json.loads((tmp_path / "tokenizer_config.json").read_text())
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    read, theirs = Tokenizer.read(tmp_path), AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    before = (("user", "a <b>"), ("assistant", "é"))
    assert render(read, "Be brief.", "words", before) == render(theirs, "Be brief.", "words", before)
    with pytest.raises(UserError, match="no tools"):
        render(read, None, "words", (("tool", "x"),))


def test_ids_without_a_text_are_refused() -> None:
    read = Tokenizer.read(FOLDER)
    ids = read("A few words.").input_ids
    assert text_of(read, ids) == "A few words."
    with pytest.raises(UserError, match=r"endpoint\.api=ids"):
        text_of(read, [*ids[:-1], *read("wor").input_ids, *read("ds").input_ids])


def test_broken_files(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(MissingFile, match="cannot be read"):
        Tokenizer.read(tmp_path)
