"""RepoQA's score on functions of our own, with BLEU worked out by hand."""

import math

import pytest

from kvbench.tasks.scbench import FUNCTIONS, function_in, pass_at_1, similarity

ADD = "def add(a, b):\n    total = a + b\n    return total"
SUB = "def sub(a, b):\n    rest = a - b\n    return rest"
FOUND = {
    "python": ("x = 1\ndef f(a):\n    return a\n", "def f(a):\n    return a"),
    "java": ("class A { int f(int a) { return a; } }", "int f(int a) { return a; }"),
    "typescript": ("const x = 1;\nfunction f(a: number) { return a }", "function f(a: number) { return a }"),
    "rust": ("use a::b;\nfn f(a: i32) -> i32 { a }", "fn f(a: i32) -> i32 { a }"),
    "cpp": ("#include <a>\nint f(int a) { return a; }", "int f(int a) { return a; }"),
    "go": ("package a\nfunc f(a int) int { return a }", "func f(a int) int { return a }"),
}


@pytest.fixture(autouse=True)
def packages() -> None:
    for module in ("nltk", "tree_sitter_language_pack"):
        pytest.importorskip(module)


@pytest.mark.parametrize("language", FUNCTIONS)
def test_the_first_function_of_a_block_is_what_was_said(language: str) -> None:
    code, wanted = FOUND[language]
    assert function_in(f"Here it is:\n```{language}\n{code}\n```\nas asked", language) == wanted


def test_without_a_function_the_block_and_without_a_block_the_answer() -> None:
    assert function_in("```\nx = 1\n```\n```\ndef f():\n    pass\n```", "python") == "def f():\n    pass"
    assert function_in("a\n```\nx = 1\n```", "python") == "x = 1\n"
    assert function_in(f"  {ADD} \n", "python") == ADD


def test_similarity_is_bleu() -> None:
    """Of five words the last one differs: precisions 4/5, 3/4, 2/3, 1/2, equal lengths."""
    assert similarity("a b c d e", "a b c d x") == pytest.approx((4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25, abs=1e-12)
    assert similarity(ADD, ADD) == pytest.approx(1.0)
    assert similarity("a b c d", "a b c d e") == pytest.approx(math.exp(1 - 5 / 4), abs=1e-12)


@pytest.mark.parametrize(
    ("prediction", "worth"),
    [
        (f"```python\n{ADD}\n```", 1.0),
        (ADD, 1.0),
        (SUB, 0.0),
        ("def add(a, b): return a + b", 0.0),
        (" \n", 0.0),
    ],
    ids=["block", "bare", "another", "unlike", "empty"],
)
def test_an_answer_is_right_if_the_function_asked_for_is_the_most_similar_one(prediction: str, worth: float) -> None:
    assert pass_at_1(prediction, [ADD], [SUB, ADD], "python") == worth


def test_another_language_is_refused() -> None:
    with pytest.raises(ValueError, match=r"language 'cobol': allowed: python"):
        pass_at_1("x", ["x"], ["x"], "cobol")
