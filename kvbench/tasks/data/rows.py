"""Rows of the formats that benchmarks are published in, as plain objects in the order of the file."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvbench.support.errors import UserError


def of_parquet(file: Path) -> Iterator[dict[str, Any]]:
    """Every row with all its columns. Raises ValueError for a file that is no whole parquet file."""
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=16):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(str(error).splitlines()[0]) from None


def of_csv(file: Path) -> Iterator[dict[str, str]]:
    """Every row by the names of the header, all fields as texts. Raises ValueError for rows that do not fit it."""
    csv.field_size_limit(sys.maxsize)  # a chapter is longer than the 128 KiB that a field may have by default
    with file.open(encoding="utf-8", newline="") as lines:
        try:
            for row in csv.DictReader(lines, strict=True):
                if None in row or None in row.values():
                    raise UserError("a row has another number of fields than the header")
                yield row
        except csv.Error as error:
            raise UserError(f"it is no CSV: {error}") from None


def of_squad(file: Path) -> Iterator[dict[str, Any]]:
    """Every question of a file of SQuAD 1.1 with its paragraph, as the rows of rajpurkar/squad on the hub.

    Raises ValueError for another format.
    """
    content = json.loads(file.read_text("utf-8"))
    try:
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                for asked in paragraph["qas"]:
                    yield {
                        "id": asked["id"],
                        "title": article.get("title", ""),
                        "context": paragraph["context"],
                        "question": asked["question"],
                        "answers": {
                            "text": [answer["text"] for answer in asked["answers"]],
                            "answer_start": [answer["answer_start"] for answer in asked["answers"]],
                        },
                    }
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"it is no file of SQuAD: {type(error).__name__}: {error}") from None
