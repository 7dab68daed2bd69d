"""Rows and templates of our own in the published schemas: what transcripts are made of, without words of others.

Each file has a short row and a long one. The texts have what prompts meet: white space at both ends, braces, other
scripts, carriage returns, and in the long one the text of a special token.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kvbench.extras.helmet.tests import rows as helmet_rows
from kvbench.extras.longproc.tests import rows as longproc_rows
from kvbench.extras.nolima.tests import rows as nolima
from kvbench.support.plugins import own_sources

FILES = {path.stem: path for source in own_sources() for path in (source.conf / "task").glob("*.yaml")}
"""The settings files of tasks, by family."""
SAMPLES = 2
SHORT = '  The {context} of {0}\tcosts 3.5 \u20ac.\r\n\u5929\u7a7a\u662f\u84dd\u8272\u7684\u3002 \U0001f98a is "it"?\n'
SYSTEM = "You are a helpful assistant."
"""The system turn where a protocol has one."""

NEEDLES = (500, 33), (1200, 100), (700, 0)
"""Context lengths and depths of the needle heat-map."""

MATH = {"math500": "math500/test.jsonl", "aime24": "aime/2024.jsonl", "aime25": "aime/2025.jsonl"}
"""The files of problems."""

CHOICES = ("longbook_choice_eng", "code_debug")
WITHOUT_INPUT = ("gov_report", "multi_news", "vcsum", "passage_count", "lcc")
LONGBENCH_ANSWERS = {
    "passage_retrieval_en": "Paragraph 3",
    "passage_retrieval_zh": "\u6bb5\u843d3",
    "passage_count": "3",
}
INFINITE = "Read {context}\nthen {input}\n\nSo:"
INFINITE_TEMPLATES = {
    "longbook_sum_eng": "Read {context}\n\nSum up:",
    "longbook_qa_chn": "\u8bfb {context}\n\u95ee {question}\n\u7b54",
    "longbook_qa_eng": "Read {context}\nQuestion: {question}\nAnswer:",
    "longbook_choice_eng": "Read {context}\n{question}\nA. {OPTION_A}\nB. {OPTION_B}\nC. {OPTION_C}\nD. {OPTION_D}\nSo",
    "code_debug": "Read {context}\nA. {OPTION_A}\nB. {OPTION_B}\nC. {OPTION_C}\nD. {OPTION_D}\nSo",
    "code_run": "Look for ${func} in {context}\nWhat is {func_call}?",
    "math_find": "{prefix}\n\n{context}\n\n{input}",
    "math_calc": "Add up {context}\nValues:",
    "longdialogue_qa_eng": "Read {context}\nWho is it?",
}
INFINITE_INPUTS = {
    "code_run": "The value of func_12(-3). Go.",
    "math_find": "The second largest number of the list is: ",
}
INFINITE_ANSWERS: dict[str, Any] = {"math_calc": "[1, -2]", "math_find": [88.5], "code_run": [4]}
V2_TEMPLATES = {
    "0shot": "Read this:\n\n<text>\n$DOC$\n</text>\n\nThen: $Q$\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\n\nSo?",
    "0shot_cot": "Read this:\n\n$DOC$\n\nThen: $Q$\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\n\nThink:",
    "0shot_cot_ans": "The question: $Q$\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$\n\nYou thought: $COT$\n\nSo?",
}


def members(family: str) -> tuple[str, ...]:
    """The names of a family's tasks after its own, in the order of its file."""
    content = yaml.safe_load(FILES[family].read_text("utf-8"))
    return tuple(name.partition("/")[2] for name in content["members"])


def long(paragraphs: int) -> str:
    """A text of so many paragraphs, about 40 tokens each with the tokenizers of `families`."""
    return "".join(
        f"Paragraph {number}: the {('red', 'grey', 'old')[number % 3]} fox of {{house {number}}} paid "
        f"{number * 37 % 101}.5 \u20ac at noon, then it slept.\n{' ' * (number % 3)}"
        + ("</s>" if number == paragraphs // 2 else "")
        for number in range(paragraphs)
    )


def contexts() -> tuple[str, str]:
    """The context of the short row and of the long one."""
    return SHORT, f"\n{long(14)} "


def conversation(text: str) -> list[dict[str, str]]:
    """Messages, some of which have a text as it is."""
    ask = "Prepend x1 to the second (1 indexed) poem. "
    turns = ("user", "write a {poem} "), ("assistant", text), ("user", "write a poem"), ("assistant", f"\n{text}")
    return [{"role": role, "content": content} for role, content in (*turns, ("user", ask))]


def write(root: Path) -> None:
    """Write all files under `root`, laid out as `data.root` expects."""
    for family, suffix in (("longbench", ""), ("longbench_e", "_e")):
        for member in members(family):
            _lines(root / "longbench" / f"{member}{suffix}.jsonl", _longbench(member))
    prompts = {name: _longbench_template(name) for name in members("longbench")}
    _json(root / "longbench" / "config" / "dataset2prompt.json", prompts)
    _json(root / "longbench" / "config" / "dataset2maxlen.json", {name: 16 + len(name) for name in prompts})
    _lines(root / "longbench_v2" / "data.jsonl", _longbench_v2())
    for name, text in V2_TEMPLATES.items():
        path = root / "longbench_v2" / "prompts" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    for member in members("infinitebench"):
        _lines(root / "infinitebench" / f"{member}.jsonl", _infinitebench(member))
    templates = {name: INFINITE_TEMPLATES.get(name, INFINITE) for name in members("infinitebench")}
    _json(root / "infinitebench" / "prompts.json", {"yarn_mistral_templates": templates})
    for member in members("scbench"):
        _lines(root / "scbench" / f"{member}.jsonl", _scbench(member))
    _lines(root / "squad" / "train.jsonl", _squad())
    _lines(root / "gsm8k" / "test.jsonl", _gsm8k())
    for rows in (helmet_rows, longproc_rows, nolima):
        rows.write(root)
    for needles in (2, 4, 8):
        messages = [json.dumps(conversation(text)) for text in contexts()]
        answer = {"answer": "x1Tulip", "random_string_to_prepend": "x1", "n_chars": 90}
        for part, prompt in enumerate(messages):
            _lines(root / "mrcr" / f"{needles}needle_{part}.jsonl", [answer | {"prompt": prompt}])
    for path in MATH.values():
        _lines(root / path, [{"problem": text, "answer": "7"} for text in contexts()])
    _ruler(root)
    (root / "pg19").mkdir()
    for number, text in enumerate(contexts()):
        (root / "pg19" / f"test_{number}.txt").write_bytes(text.encode())


def _ruler(root: Path) -> None:
    """Essays and data sets of questions that RULER's generators read."""
    (root / "paul_graham_essays").mkdir()
    common = ["the", "cache", "of", "a", "token", "is", "kept", "and", "each", "head", "has", "one", "score"]
    for name, start in (("b.txt", 450), ("a.txt", 0)):
        words = (f"{common[number % 13]}{'.' if number % 9 == 8 else ''}" for number in range(start, start + 450))
        (root / "paul_graham_essays" / name).write_text(" ".join(words) + "\n", "utf-8")
    articles = [
        {
            "paragraphs": [
                {
                    "context": f"Paragraph {article}.{number} says \u20ac: answer {article}.{number}.",
                    "qas": [
                        {"question": f"What is not {number}?", "is_impossible": True, "answers": []},
                        {
                            "question": f"What is {{{article}.{number}}}? ",
                            "is_impossible": False,
                            "answers": [{"text": f"answer {article}.{number}"}],
                        },
                    ],
                }
                for number in range(3)
            ]
        }
        for article in range(40)
    ]
    _json(root / "ruler" / "squad.json", {"data": articles})
    documents = [[f"Title {number}", ["One sentence.", f" Number {number}."]] for number in range(700)]
    questions = [
        {"question": f"Which is {row}?", "answer": f"answer {row}", "context": documents[9 * row : 9 * row + 10]}
        for row in range(60)
    ]
    _json(root / "ruler" / "hotpotqa.json", questions)


def ruler_rows(member: str) -> list[dict[str, Any]]:
    """Rows of simonjegou/ruler for a task; a question there ends with a blank."""
    content = yaml.safe_load(FILES["ruler_published"].read_text("utf-8"))
    most = content["members"][f"ruler_published/{member}"].get("max_new_tokens", content["max_new_tokens"])
    asked = ("What is hidden in it? ", "\nWhat are all the values of {x}? ")
    return [
        {
            "context": context,
            "question": question,
            "answer_prefix": prefix,
            "answer": ["7"],
            "task": member,
            "max_new_tokens": most,
        }
        for context, question, prefix in zip(contexts(), asked, ("It is", " Answer: The values are:"), strict=True)
    ]


def _longbench_template(member: str) -> str:
    return "Read {context}\n\nSum up:" if member in WITHOUT_INPUT else "Read {context}\n\nQuestion: {input}\nAnswer:"


def _longbench(member: str) -> list[dict[str, Any]]:
    row = {"answers": [LONGBENCH_ANSWERS.get(member, "Date")], "all_classes": None, "language": "en"}
    row["all_classes"] = ["Date", "Food"] if member in ("trec", "lsht") else None
    inputs = "Which {one}? ", " Which is the last one?\n"
    return [
        row | {"_id": str(number), "dataset": member, "length": 100, "context": context, "input": asked}
        for number, (context, asked) in enumerate(zip(contexts(), inputs, strict=True))
    ]


def _longbench_v2() -> list[dict[str, Any]]:
    choices = {"choice_A": "word0", "choice_B": " word1 ", "choice_C": "$C_A$\n", "choice_D": "\u5929"}
    row = {"question": " Which {comes} first? ", **choices, "answer": "A", "length": "short", "difficulty": "easy"}
    row |= {"domain": "d", "sub_domain": "s"}
    return [row | {"_id": str(number), "context": context} for number, context in enumerate(contexts())]


def _infinitebench(member: str) -> list[dict[str, Any]]:
    options = ["one", " two", "three", "four"]
    answer = ["three"] if member in CHOICES else INFINITE_ANSWERS.get(member, ["x"])
    row = {"input": INFINITE_INPUTS.get(member, "Which {one}? "), "answer": answer, "options": options}
    return [row | {"id": number, "context": context} for number, context in enumerate(contexts())]


def _scbench(member: str) -> list[dict[str, Any]]:
    add = "def add(a, b):\n    return a + b"
    answer: Any = {"repoqa": add, "repoqa_and_kv": add, "many_shot": "A", "vt": ["AB", "XY"], "mf": 7}.get(
        member, "red"
    )
    choices = "\n(A) blue\n(B) red\n" if member == "many_shot" else ""
    kinds = {"summary_with_needles": "scbench_summary", "repoqa_and_kv": "scbench_repoqa"}
    rows = []
    for context in contexts():
        asked = [f" Which {{one}}?{choices}", f"\n\nAnd the second?{choices} ", f"\u5929 is what?{choices}"]
        row: dict[str, Any] = {"prompts": [context, *asked], "ground_truth": [answer] * 3}
        if "repoqa" in member:
            row |= {"lang": "python", "repo": "a/b", "func_name": ["add"] * 3}
        if member in kinds:
            row["task"] = [kinds[member]] * 3
        rows.append(row)
    return rows


def _squad() -> list[dict[str, Any]]:
    return [
        {"context": context, "question": question, "answers": {"text": ["red"], "answer_start": [0]}}
        for context in contexts()
        for question in (" Which one? ", "Who is {it}?")
    ]


def _gsm8k() -> list[dict[str, Any]]:
    facts = ". ".join(f"Baker {number} fills {number * 37 % 101} trays with {number} rolls" for number in range(12))
    texts = f"{facts}. How many rolls are left?", f" {facts}.  Each costs 3.5 \u20ac. What is {{it}}? "
    return [{"question": text, "answer": "It is 7. #### 7"} for text in texts]


def _lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8", newline="\n")


def _json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
