"""Rows of microsoft/SCBench in the published schema, with words of our own: two contexts of three questions each."""

from typing import Any

from tests.tasks.scbench.rows import ADD, SUB

MUL = "def mul(a, b):\n    return a * b"
MEMBERS = (
    *("choice_eng", "qa_eng", "qa_chn", "kv", "mf", "repoqa", "summary", "vt", "many_shot"),
    *("summary_with_needles", "repoqa_and_kv", "prefix_suffix"),
)
ANSWERS: dict[str, list[Any]] = {
    "choice_eng": ["A blue sky", "Red", "Nobody"],
    "qa_eng": ["a red fox", "Twice", "no one"],
    "qa_chn": ["红色的狐狸", "两次", "没有人"],
    "kv": ["9c02-aa", "77aa-bb", "01ff-cc"],
    "prefix_suffix": ["abcd", "efgh", "ijkl"],
    "mf": [7, 12, 3],
    "repoqa": [ADD, SUB, MUL],
    "summary": ["The red fox runs.\nIt sleeps.", "A red dog.", "Nothing happens at all."],
    "vt": [["AB", "XY"], ["QQ"], ["ZZ", "AB", "CD"]],
    "many_shot": ["(A)", "(B)", "(A)"],
    "summary_with_needles": ["The red fox runs.", "71432", "A red dog."],
    "repoqa_and_kv": [ADD, "77aa-bb", SUB],
}
KINDS = {
    "summary_with_needles": ["scbench_summary", "scbench_passkey", "scbench_summary"],
    "repoqa_and_kv": ["scbench_repoqa", "scbench_kv", "scbench_repoqa"],
}
ASKED = {
    "mf": ["What is it?\nThe largest number is ", "The second largest number is", "The median of the list is"],
    "repoqa": ["Which adds {two} numbers?", "Which subtracts?", "Which multiplies?"],
}


def rows(member: str) -> list[dict[str, Any]]:
    """The second context has a question of the first one's repository, and its turns in another order."""
    questions = ASKED.get(member, ["What is {first}?", "And the second?", "Which is the last one?"])
    turns = [{"input": question, "answer": answer} for question, answer in zip(questions, ANSWERS[member], strict=True)]
    for place, turn in enumerate(turns):
        if member in KINDS:
            turn["task"] = KINDS[member][place]
        if "repoqa" in turn.get("task", member):
            turn["name"] = ("add", "sub", "mul")[place]
        if member == "choice_eng":
            turn["options"] = [*ANSWERS[member][::-1], "Someone else"]
    first: dict[str, Any] = {"id": 0, "context": "Some {context} words. " * 3, "multi_turns": turns}
    if member == "mf":
        first["context"] = [3, 7, 1, 12]
    if "repoqa" in member:
        first |= {"lang": "python", "repo": "a/b"}
    other = {key: value for key, value in first.items() if key != "context"}
    context = [5, 6] if member == "mf" else "Other words."
    return [first, other | {"id": 1, "input" if member == "kv" else "context": context, "multi_turns": turns[::-1]}]


PREDICTIONS = (
    *("", "nothing", "A", "B. Red", "The answer is: A blue sky", "answer is C", "a RED fox!", "Twice, or 2"),
    *("狐狸红", "两", "9C02-AA", "so 77aa-bb.", "x01ff-ccx", "abcd", "7", "-7.9 or 12", "12.0", "3.5", "AB and xy"),
    *("qq zz ab", "(B)", "b", "The red fox runs.\nIt sleeps.", "A red dog sleeps.", "This paper. The fox"),
    *("No. 71432 is it", "71432", "7 71432"),
    *(ADD, f"```python\n{SUB}\n```", f"Here:\n```\n{MUL}\n```\nDone", f"{ADD}\n\n{SUB}", "def add(a, b): return a + b"),
)
"""Answers that are scored for every question of every task."""
