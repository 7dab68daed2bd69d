"""Packed rows as a folder of results, so that a run continues from them and makes only what they lack."""

import json
import shutil
from pathlib import Path

from kvbench.records import Recorder, ResultsFolder, read_rows
from kvbench.records.moments import spans_of
from kvbench.records.rows import rows_of
from kvbench.report.rows import describer, load_table
from kvbench.support.errors import UserError
from reference_results.moments import keep_moments
from reference_results.sweeps import RowSet
from reference_results.workers import write_parts


def unpack_all(known: RowSet, results: Path) -> None:
    """Write the committed rows of all parts, with their cells and environments, as the rows of a run.

    Seconds, and hashes of kept sets beyond the first samples, are not in packed rows and stay unknown. When the rows of
    a cell were made is kept beside them. Raises UserError for a folder that has rows of one of the cells already.
    """
    folder, parts = ResultsFolder(results), dict[str, list[str]]()
    present = {row.cell for row in read_rows(folder)} if folder.rows.is_dir() else set[str]()
    for part in {part.file: part for part in reversed(list(known.parts.values()))}.values():
        file, copied = known.folder / f"{part.file}.parquet", known.folder / part.file
        if not file.is_file() and not copied.is_dir():
            continue
        table = load_table(file if file.is_file() else copied)
        parts[part.name] = cells = sorted(set(table["cell"].to_pylist()))
        if present.intersection(cells):
            raise UserError(f"{results} has rows of part {part.name} already: unpack into a new folder, by --results")
        describe = describer(file if file.is_file() else copied)
        for cell in cells:
            folder.write_cell(cell, describe(cell) or {})
        if file.is_file():
            with Recorder(folder) as recorder:
                recorder.append(rows_of(table))
            assert recorder.path is not None, "it has written rows"
            keep_moments(results, recorder.path, spans_of(file, table))
        else:
            for name in ("rows", "curves", "kept"):
                if (copied / name).is_dir():
                    shutil.copytree(copied / name, results / name, dirs_exist_ok=True)
        print(f"{known.name}: {part.file}: {table.num_rows} rows of {len(cells)} cells")
    for environment in json.loads((known.folder / "environments.json").read_text("utf-8")).values():
        folder.write_environment(environment)
    write_parts(results, parts)
