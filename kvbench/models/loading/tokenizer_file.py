"""Whether transformers reads texts as the model's tokenizer.json does.

Before 5.22 transformers rebuilds some tokenizers from their class instead of their file, and drops the blanks of
byte-level ones whose class is Llama's: other prompts with the same hash.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from kvbench.support.errors import UserError

FILE, RIGHT = "tokenizer.json", "5.22"
"""What is compared with, and the first version of transformers that is known to read it."""
TEXT = "a\nOne text, 2 numbers.  Two blanks, an été.\n"
"""Blanks, letters beyond ASCII and line ends; some settings put a blank before its start, or leave it out."""
START = 2
"""Tokens at the start in which the two may differ."""


def check_reading(tokenizer: Any, folder: Path) -> None:
    """Compare the tokens of a text, and what is left of it in them, with those by the folder's tokenizer.json.

    Raises UserError where they differ.
    """
    from tokenizers import Tokenizer

    file = folder / FILE
    if not file.is_file():
        return
    expected = Tokenizer.from_file(str(file))
    expected.no_truncation()
    expected.no_padding()
    right = expected.encode(TEXT, add_special_tokens=False).ids
    read = list(tokenizer(TEXT, add_special_tokens=False).input_ids)
    tail = right[START:]
    is_same = read[-len(tail) :] == tail and abs(len(read) - len(right)) <= 1
    kept, whole = (expected.decode(ids, skip_special_tokens=False) for ids in (read, right))
    if not is_same and kept != whole:
        raise UserError(
            f"{folder}: transformers {version('transformers')} reads {len(read)} tokens in a text that has "
            f"{len(right)} by {FILE}; install 'transformers>={RIGHT},<6', or mend tokenizer_class in "
            "tokenizer_config.json"
        )
