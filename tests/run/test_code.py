"""The code of a cell: what executes it counts, what reports it does not."""

from pathlib import Path

import pytest

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.run import code as cell_code
from kvbench.run import eviction_method
from kvbench.run.cell import Cell
from kvbench.run.code import Code
from kvbench.support import syntax
from kvbench.support.syntax import NoSource

ROOMS = ("cache", "decoding gpu_decoding", "eviction", "models", "run")


def cell(*words: str) -> Cell:
    return CellBuilder().cell(combinations(parse(words))[0])


def test_a_cell_names_its_parts() -> None:
    full, h2o_obcache = cell("policy=full"), cell("policy=h2o_obcache", "score=obcache_joint")
    assert sorted(full.code.parts or {}) == [*ROOMS, "task ruler/niah_single_1"]
    assert sorted(h2o_obcache.code.parts or {}) == [*ROOMS, "score obcache_joint", "task ruler/niah_single_1"]
    assert cell("policy=h2o_obcache", "score=obcache_joint", "budget=0.2").code == h2o_obcache.code
    assert cell("policy=h2o_obcache", "score=caote").code.id != h2o_obcache.code.id
    text = cell("task=pg19", "policy=full", "data.root=nowhere").code.parts
    assert text is not None and "run perplexity" in text and "run" not in text


def test_cells_of_one_version_have_one_hash_of_each_part() -> None:
    """Cells that answer, read a text or are timed, and scores with another host, stand in one folder."""
    hosted = ("policy=plain", "score=criticalkv")
    several = [("policy=h2o",), ("task=efficiency", "policy=h2o"), ("task=pg19", "policy=full", "data.root=nowhere")]
    several += [hosted, (*hosted, "score.host=expected_attention")]
    hashes: dict[str, str] = {}
    for parts in (cell(*words).code.parts or {} for words in several):
        assert all(hashes.setdefault(name, part) == part for name, part in parts.items())
    assert {"run", "run timed", "run perplexity"} < hashes.keys()


@pytest.mark.parametrize(
    ("file", "parts"),
    [
        ("kvbench/eviction/scores/obcache.py", {"score obcache_joint"}),
        ("kvbench/tasks/metrics.py", {"task ruler/niah_single_1"}),
        ("kvbench/run/evict_cell.py", {"run"}),
        ("kvbench/extras/gpu_decoding/rooms.py", {"decoding gpu_decoding"}),
        ("kvbench/run/runner.py", set()),
        pytest.param("kvbench/eviction/allocation/layers.py", {"eviction"}, marks=pytest.mark.slow),
        pytest.param("kvbench/cache/kv_cache.py", {"cache"}, marks=pytest.mark.slow),
        pytest.param("kvbench/models/engine.py", {"models"}, marks=pytest.mark.slow),
        pytest.param("kvbench/report/rows.py", set(), marks=pytest.mark.slow),
        pytest.param("kvbench/records/row.py", set(), marks=pytest.mark.slow),
    ],
)
def test_a_change_of_a_file_changes_the_parts_that_execute_it(
    monkeypatch: pytest.MonkeyPatch, file: str, parts: set[str]
) -> None:
    """A statement is added to the file as it is read; all other files are as they were read before."""
    this, read = cell("policy=h2o_obcache", "score=obcache_joint"), Path.read_bytes
    name, statements = file.removesuffix(".py").replace("/", "."), syntax.statements
    before = this.code.parts
    caches = (
        syntax._functions,
        cell_code.component_sha256,
        cell_code.decoding_sha256s,
        cell_code.package_sha256,
        cell_code.modules_sha256,
    )
    try:
        with monkeypatch.context() as patch:
            changed = lambda path: read(path) + b"\nADDED = 1\n" * str(path).endswith(file)  # noqa: E731
            patch.setattr(Path, "read_bytes", changed)
            again = lambda module: (statements.__wrapped__ if module == name else statements)(module)  # noqa: E731
            patch.setattr(syntax, "statements", again)
            for cached in caches:
                cached.cache_clear()
            after = this.method.code(this.task).parts
    finally:
        for cached in caches:
            cached.cache_clear()
    assert before is not None and after is not None
    assert {name for name in before if before[name] != after[name]} == parts


def test_code_without_sources_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_source(*_: object) -> str:
        raise NoSource("kvbench")

    monkeypatch.setattr(eviction_method, "package_sha256", no_source)
    assert cell("policy=full").code == Code(None)
    assert Code(None).id == "no source"
