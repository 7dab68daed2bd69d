"""What code does decides its hash; how it is written, and in which file, does not."""

import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from kvbench.support import syntax
from kvbench.support.syntax import NoSource, closure, code_sha256, modules_in

SCORE = '''
"""A score."""
import math
from typing import TYPE_CHECKING

from made.inner.sums import total as sum_of

if TYPE_CHECKING:
    from made.other import Nothing

FACTOR = 2


def score(keys: list, flip=False):
    """The sum of keys."""
    # a comment
    return math.sqrt(sum_of(keys)) * FACTOR if flip else None


class Score:
    name: str = "score"
    """Its name."""
'''
SUMS = "def total(keys):\n    return sum(keys)\n"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """The hash of the code of a package with these files."""

    def hashed(**files: str) -> str:
        for name, text in ({"score": SCORE, "inner/sums": SUMS, "other": "Nothing = None"} | files).items():
            path = tmp_path / "made" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        for name in ("", "inner/"):
            (tmp_path / "made" / name / "__init__.py").touch()
        for name in [name for name in sys.modules if name.partition(".")[0] == "made"]:
            del sys.modules[name]
        for cached in (syntax.statements, syntax._functions, syntax._is_module, syntax._file):
            cached.cache_clear()
        return code_sha256(["made.score"], ("made.",))

    monkeypatch.syspath_prepend(str(tmp_path))
    return hashed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# a comment", "# another"),
        ('"""The sum of keys."""\n', ""),
        ('"""Its name."""', '"""The name."""'),
        ("flip else None", "flip else (\n        None\n    )"),
        ('"score"', "'score'"),
        ("    from made.other import Nothing", "    from made.other import Nothing as N"),
        ("from made.inner.sums", "from .inner.sums"),
        ("FACTOR = 2\n", ""),
    ],
)
def test_writing_it_otherwise_changes_nothing(made: Callable[..., str], before: str, after: str) -> None:
    changed = SCORE.replace(before, after)
    assert changed != SCORE
    if before.startswith("FACTOR"):
        changed += "\n\nFACTOR = 2\n"  # moved
    assert made() == made(score=changed)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("FACTOR = 2", "FACTOR = 2.0"),
        ("return math", "return -math"),
        ("flip=False", "flip=True"),
        ("else None", "else 0"),
        ("keys: list", "keys: tuple"),
        ("total as sum_of", "mean as sum_of"),
        ("import math", "import cmath as math"),
        ("class Score:", "class Score(str):"),
    ],
)
def test_another_thing_done_is_another_hash(made: Callable[..., str], before: str, after: str) -> None:
    assert before in SCORE
    assert made() != made(score=SCORE.replace(before, after))


def test_a_function_counts_with_what_it_does_wherever_it_stands(made: Callable[..., str]) -> None:
    whole = made()
    assert made(**{"inner/sums": SUMS.replace("sum(", "max(")}) != whole
    assert made(score=SCORE.replace("made.inner.sums", "made.elsewhere"), elsewhere=SUMS) == whole
    assert made(other="Nothing = 1") == whole
    assert code_sha256(["made.score"]) == code_sha256(["made.score"], ("other.",))


def test_a_closure_follows_imports_within_a_package(made: Callable[..., str]) -> None:
    made()
    assert closure(["made.score"], "made.") == {"made.score", "made.inner.sums"}
    assert closure(["made.score"], "made.inner.") == {"made.score", "made.inner.sums"}
    assert closure(["made.score"], ("other.", "mad.")) == {"made.score"}
    assert modules_in("made") == ["made", "made.inner", "made.inner.sums", "made.other", "made.score"]


def test_what_cannot_be_read_is_told(made: Callable[..., str]) -> None:
    for module in ("math", "made.nowhere"):
        with pytest.raises(NoSource, match=module):
            code_sha256([module])
    with pytest.raises(NoSource, match=r"made\.score"):
        made(score="def broken(:")
