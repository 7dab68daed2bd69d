"""Numbers of probes on disk: what was written is read, in order, and a file that is not whole is refused."""

from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from kvbench.extras.probes.numbers import probed, probed_already, write_probed
from kvbench.support.errors import UserError

CELLS = {"0" * 15 + "2": 2, "0" * 15 + "1": 2}


def written(folder: Path) -> list[Path]:
    for cell in sorted(CELLS):
        for sample in (1, 0, 2):
            common = {"probe": "oracle_recall", "cell": cell, "sample": sample}
            write_probed(folder, common, [{"quantity": "recall", "layer": layer, "value": 0.5} for layer in range(2)])
    return sorted((folder / "probes").iterdir())


def test_numbers_are_read_by_cell_and_sample(tmp_path: Path) -> None:
    written(tmp_path)
    numbers = probed(tmp_path, CELLS).to_pylist()
    places = [(number["cell"], number["sample"], number["layer"]) for number in numbers]
    assert places == [(cell, sample, layer) for cell in CELLS for sample in range(2) for layer in range(2)]
    assert probed_already(tmp_path, CELLS) == {(cell, sample) for cell in CELLS for sample in range(3)}


@pytest.mark.parametrize("damage", ["no checksum", "a bit", "cut", "another sample"])
def test_a_file_that_is_not_as_it_was_written_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path, other, *_ = written(tmp_path)
    whole = path.read_bytes()
    if damage == "no checksum":
        parquet.write_table(parquet.read_table(path).replace_schema_metadata(None), path)
    elif damage == "another sample":
        path.write_bytes(other.read_bytes())
    else:
        path.write_bytes(whole[:-99] if damage == "cut" else whole[:99] + bytes([whole[99] ^ 1]) + whole[100:])
    for read in (lambda: probed(tmp_path, CELLS), lambda: probed_already(tmp_path, CELLS, retry_errors=True)):
        with pytest.raises(UserError, match=f"^{path}: "):
            read()
    path.write_bytes(whole)
    assert probed(tmp_path, CELLS).num_rows == 8
