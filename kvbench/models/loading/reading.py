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
"""Blanks, letters beyond ASCII and line ends, behind a start that may be read with a blank before it."""
START = 2
"""Tokens at the start in which the two may differ: some settings put a blank there, or leave it out."""


def check_reading(tokenizer: Any, folder: Path) -> None:
    """Compare the tokens of a text with those by the folder's tokenizer.json, if it has one.

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
    if read[-len(tail) :] != tail or abs(len(read) - len(right)) > 1:
        raise UserError(
            f"{folder}: transformers {version('transformers')} reads {len(read)} tokens in a text that has "
            f"{len(right)} by {FILE}: prompts would lose parts such as blanks; install 'transformers>={RIGHT},<6', "
            "or mend tokenizer_class in tokenizer_config.json"
        )
