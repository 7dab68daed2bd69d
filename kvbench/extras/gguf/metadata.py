"""Metadata of the model in a GGUF file, without its weights."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from kvbench.support.errors import MissingFile, UserError

PLAIN = ("F32", "F16", "BF16")
"""Types of weights that are not quantised."""


def metadata(file: Path) -> dict[str, Any]:
    """Return the metadata of a GGUF file by name. Raises UserError without the package gguf, MissingFile for another
    file.
    """
    stat = file.stat()
    return _metadata(file, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _metadata(file: Path, size: int, changed: int) -> dict[str, Any]:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise UserError(f"{file} is read by the package gguf: pip install 'kvbench[gguf]'") from None
    try:
        return {name: field.contents() for name, field in GGUFReader(file).fields.items()}
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0]
        raise MissingFile(f"{file} is no GGUF file that can be read: {reason}: download it again") from error


def stored_as(fields: dict[str, Any]) -> str | None:
    """Return the type that most weights are stored in, in llama.cpp's words (`Q4_1`, `Q4_K_M`); None for plain
    numbers.
    """
    from gguf.constants import LlamaFileType

    number = fields.get("general.file_type")
    if number not in [kind.value for kind in LlamaFileType]:
        return "GGUF"
    name = LlamaFileType(number).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    return None if name in PLAIN else name
