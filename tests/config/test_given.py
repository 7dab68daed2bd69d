"""A score in one file without a package: run by its path, settled by its fields, and named by its contents."""

import json
from pathlib import Path

import pytest

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.given import class_in
from kvbench.config.overrides import parse
from kvbench.run.cell import Cell

FILE = """
from dataclasses import dataclass
from kvbench.eviction.scores.score import Score

class _Helper(Score):
    pass

@dataclass(frozen=True)
class Age(Score):
    sign: float = 1.0
    name: str = "age"
    signed = True

    def __post_init__(self):
        if not self.sign:
            raise ValueError(f"score.sign={self.sign}: another number than 0")

    def __call__(self, layer, window, reduce):
        return self.sign * layer.positions.view(layer.cache_heads, -1).float()
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "torch.py"  # the name of a file hides no module
    path.write_text(FILE)
    return path


def cells_of(*words: str) -> list[Cell]:
    built = CellBuilder()
    return [built.cell(tree) for tree in combinations(parse(words))]


def test_it_is_a_score_with_settings(file: Path) -> None:
    cells = cells_of(f"score.path={file}", "score.sign=1,-2")
    assert [(cell.score.name, cell.eviction.score_label) for cell in cells] == [
        ("age", "age"),
        ("age", "age sign=-2.0"),
    ]
    compared = cells_of(f"score=attn,{file}", "policy=snapkv,full")
    assert [cell.eviction.score_label for cell in compared] == ["attn", None, "age", None]
    with pytest.raises(ValueError, match=r"score.sign=0.0: another number than 0"):
        cells_of(f"score.path={file}", "score.sign=0")
    with pytest.raises(ValueError, match=r"unknown setting score.sing: did you mean score.sign\?"):
        cells_of(f"score.path={file}", "score.sing=2")


def test_an_edited_file_is_another_cell(file: Path) -> None:
    (before,), (again,) = cells_of(f"score.path={file}"), cells_of(f"score.path={file}")
    assert before.id == again.id and list(before.description["plugins"]) == ["torch.py"]
    file.write_text(FILE.replace("self.sign *", "2 * self.sign *"))
    (edited,) = cells_of(f"score.path={file}")
    assert edited.id != before.id and edited.description["score"] == before.description["score"]
    assert json.dumps(edited.description["plugins"]) != json.dumps(before.description["plugins"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def (", r"[^ ]+/torch.py, line 1 does not load: SyntaxError: invalid syntax"),
        ("import not_there", r"[^ ]+/torch.py does not load: ModuleNotFoundError: No module named 'not_there'"),
        ("x = 1", "must define one score, a dataclass that derives from .*Score: it has none"),
        (FILE + "class Second(Age):\n    pass\n", "it has Age, Second"),
        (FILE.replace("@dataclass(frozen=True)", ""), "torch.py: Age is not a dataclass"),
        (FILE.replace("(frozen=True)", ""), r"torch.py: Age is a dataclass that is not frozen: make it a @dataclass\("),
        (FILE.replace('name: str = "age"', ""), r'torch.py: add `name: str = "torch"` to Age'),
        (FILE.replace('name: str = "age"', 'name = "age"'), r'torch.py: add `name: str = "torch"` to Age'),
    ],
)
def test_a_bad_file_is_named(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        cells_of(f"score.path={file}")
    assert "\n" not in str(refused.value)


def test_a_file_is_one_module_however_it_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    spellings = (str(file), file.name, f"./{file.name}")
    first, *others = (class_in(path, "score", "kvbench.eviction.scores.score.Score") for path in spellings)
    assert all(other is first for other in others)


def test_an_unknown_group_is_refused_before_anything_runs(file: Path) -> None:
    file.write_text(FILE.replace("signed = True", 'group = "median"'))
    (cell,) = cells_of(f"score.path={file}")
    with pytest.raises(
        ValueError, match=r"score age \([^ ]+/torch.py, line 8\) has group='median'; allowed: mean, max,"
    ):
        cell.check()


def test_a_file_beside_another_score_or_nowhere(file: Path) -> None:
    with pytest.raises(ValueError, match=r"is itself a score; to compare it with others write score=attn,"):
        cells_of(f"score.path={file}", "score=attn")
    with pytest.raises(FileNotFoundError, match=r"no such file: nowhere\.py"):
        cells_of("score.path=nowhere.py")
