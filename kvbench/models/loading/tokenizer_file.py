"""Checks of a tokenizer.json: that transformers reads texts as it says, and that its rules make little of a text.

Before 5.22 transformers rebuilds some tokenizers from their class instead of their file, and drops the blanks of
byte-level ones whose class is Llama's: other prompts with the same hash.

Rules that replace a letter by many take all of the memory. They are counted before a text is read, since the library
that follows them cannot be stopped.
"""

import base64
import json
import struct
from collections.abc import Mapping
from importlib.metadata import version
from math import prod
from pathlib import Path
from typing import Any

from kvbench.support.errors import UserError
from kvbench.support.whole_file import read_whole

FILE = "tokenizer.json"
RIGHT = "5.22"
"""The first version of transformers that is known to read the file."""
TEXT = "a\nOne text, 2 numbers.  Two blanks, an été.\n"
"""Blanks, letters beyond ASCII and line ends; some settings put a blank before its start, or leave it out."""
START = 2
"""Tokens at the start in which the two may differ."""
MOST_CHARACTERS = 256
"""Of one character, or of one token: tokenizers of published models make at most 18, of a ligature by NFKC."""
MOST_ADDED, REPEAT = 2**16, 2**12
"""Tokens that are put around a text, and as how many counts each time that the text is there."""
Part = Mapping[str, Any]


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


def check_growth(folder: Path) -> None:
    """Raise UserError for the tokenizer.json of a folder whose rules make too much of a text, if it has one."""
    if not (folder / FILE).is_file():
        return
    try:
        content = json.loads(read_whole(folder / FILE))
        counts = {
            "normalizer": (growth(content.get("normalizer")), MOST_CHARACTERS, "characters of one"),
            "decoder": (growth(content.get("decoder")), MOST_CHARACTERS, "characters of one"),
            "post_processor": (added(content.get("post_processor")), MOST_ADDED, "tokens around a text"),
        }
    except (ValueError, TypeError, AttributeError, KeyError, LookupError, RecursionError, struct.error) as error:
        if isinstance(error, UserError):
            raise
        return  # of a form that tokenizers refuses
    for name, (count, most, what) in counts.items():
        if count > most:
            raise UserError(
                f"{folder / FILE}: its {name} makes up to {count:,} {what}: allowed: {most:,}; use the tokenizer of "
                "the model's makers"
            )


def growth(part: Part | None) -> int:
    """Return the most characters that a normaliser or a decoder makes of one."""
    match part:
        case {"type": "Sequence", "normalizers": parts} | {"type": "Sequence", "decoders": parts}:
            return prod(map(growth, parts))
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1, -(-len(content) // len(pattern)))
        case {"type": "Replace", "content": str(content)}:  # before each character, and instead of it
            return len(content) + 1
        case {"type": "Prepend", "prepend": str(content)}:
            return max(1, len(content))
        case {"type": "Precompiled", "precompiled_charsmap": str(table)}:
            return _longest_of(base64.b64decode(table))
    return 1


def _longest_of(table: bytes) -> int:
    """Return the characters of the longest text in a table of SentencePiece: the size of an index, it, texts that end
    in 0.
    """
    (size,) = struct.unpack_from("<I", table)
    return max((len(text.decode("utf-8", "replace")) for text in table[4 + size :].split(b"\0")), default=1)


def added(part: Part | None) -> int:
    """Return the tokens that a post-processor puts around a text, which it may also repeat."""
    match part:
        case {"type": "Sequence", "processors": parts}:
            return sum(map(added, parts))
        case {"type": "TemplateProcessing", "single": pieces, "special_tokens": tokens}:
            return sum(_size(piece, tokens) for piece in pieces)
    return 0


def _size(piece: Part, tokens: Mapping[str, Part]) -> int:
    return len(tokens[piece["SpecialToken"]["id"]]["ids"]) if "SpecialToken" in piece else REPEAT
