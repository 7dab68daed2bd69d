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


def check_reading(tokenizer: Any, folder: Path) -> None:
    """Compare what is left of a text in its tokens with what the folder's tokenizer.json, if it has one, leaves of it.

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
    kept, whole = (expected.decode(ids, skip_special_tokens=False).strip() for ids in (read, right))
    if kept != whole:
        raise UserError(
            f"{folder}: transformers {version('transformers')} reads {len(read)} tokens in a text that has "
            f"{len(right)} by {FILE}: prompts would lose parts such as blanks; install 'transformers>={RIGHT},<6', "
            "or mend tokenizer_class in tokenizer_config.json"
        )
