"""Messages of errors fit two lines of a terminal."""

import ast
from collections.abc import Iterator

from tests.repository import ROOT, code, parsed

ERRORS = ("UserError", "MissingFile", "TaskError", "NoData", "NothingSelected", "CannotTell")
VALUE, MOST = 12, 220
"""Characters of a value that a message names, and of a whole message."""


def length(message: ast.expr) -> int:
    """Characters of a message with values of usual length; of an alternative, its longer side."""
    match message:
        case ast.Constant(value=str(text)):
            return len(text)
        case ast.JoinedStr(values=parts):
            return sum(map(length, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return length(left) + length(right)
        case ast.IfExp(body=body, orelse=other):
            return max(length(body), length(other))
        case ast.FormattedValue(value=ast.IfExp() | ast.Constant() | ast.JoinedStr() as inner):
            return length(inner)
    return VALUE


def messages() -> Iterator[tuple[str, int]]:
    """The file and the length of each message."""
    for file in code():
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
                yield file.relative_to(ROOT).as_posix(), length(node.args[0])


def test_messages_of_errors_fit_two_lines() -> None:
    found = [*messages()]
    assert len(found) > 500
    assert not {file for file, characters in found if characters > MOST}
