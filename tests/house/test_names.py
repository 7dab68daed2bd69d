"""A name means one thing: no public class of the core shares its name with another one."""

import ast
from collections import Counter

from tests.repository import ROOT, code, parsed

CORE = [file for file in code() if file.relative_to(ROOT).parts[1] != "extras"]


def test_no_class_name_stands_twice_in_the_core() -> None:
    classes = [node for file in CORE for node in parsed(file).body if isinstance(node, ast.ClassDef)]
    names = Counter(node.name for node in classes if not node.name.startswith("_"))
    assert len(names) > 200
    assert {name for name, count in names.items() if count > 1} == set()
