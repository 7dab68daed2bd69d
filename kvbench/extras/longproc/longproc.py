"""LongProc without code to run: long answers that follow a procedure. https://github.com/princeton-pli/LongProc

    html_to_tsv      {"html_path": "webpage/W1_0.5k_1.html", "task_topic": "...", "task_description": "...",
                     "filtering_instruction": "", "tsv_header": "a\\tb", "gt": "a\\tb\\n1\\t2"}
    path_traversal   {"context_nl": "...", "question_repr": ["Lille", "York"], "answer_nl": "From Lille, take a ..."}
    tom_tracking     {"story_components": "...", "story": "Step 0: ...", "question": "...", "solution": "- Step 0: ..."}
    countdown        {"nums": [21, 16, 17, 26], "target": 46}
    travel_planning  {"disambig_question_text": "...", "ground_truth_cities": "A**B", "ground_truth_durations": "3**5",
                     "estimated_output_tokens": 1200}

Follows longproc_data.py and the evaluators at 78e873a. The examples of countdown are made in `countdown.py`,
travel_planning's in `travel.py`. Nothing of an answer is evaluated as Python, as
countdown_evaluator.py does with its equations: one that is no equation of two whole numbers scores 0, also where the
official script ends with an error.
"""

import csv
import operator
import re
import string
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import yaml

from kvbench.extras.longproc.countdown import countdown
from kvbench.extras.longproc.travel import travel
from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import NoData, find, listing
from kvbench.tasks.metrics import english
from kvbench.tasks.task import Sample, TokenCounter

LENGTHS = ("0.5k", "2k", "8k")
PLANS = {"2k": range(2048), "8k": range(4096, 8192)}
"""Estimated tokens of the answers of travel_planning by length."""
SPLIT = {
    "html_to_tsv": "html_str",
    "path_traversal": "city_context",
    "tom_tracking": "story",
    "countdown": "demonstration",
    "travel_planning": "demonstration",
}
"""The field of a template after which its prompt is divided."""
COUNTDOWN_EXAMPLES = (([40, 19, 23, 7], 29), ([9, 16, 6, 18], 12))
"""Numbers and targets."""
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
FILLERS = re.compile(
    r"\b(a|an|the|on|in|at|the|step|thinks|think|believes|believe|is|are|of|location|know|knows|belief)\b"
)
MARKS = dict.fromkeys(map(ord, string.punctuation + "’"))


@dataclass(frozen=True, kw_only=True)
class LongProc(jsonl.RowTask):
    """The rows of one data set; its name ends with the length of the answers.

    - Protocol: princeton-pli/LongProc 78e873a, `longproc_data.py`; templates are read at run time, the examples of
      `countdown` and `travel_planning` are the searches that its solvers write. Names end with the length of the
      answers; HELMET's configs have their limits. Answers are long: evict while decoding too
      (`schedule.decode_every`).
    - Split: after the page, the connections or the story; of `countdown` and `travel_planning` after the examples.
    - Metric: F1 of the rows of the table (`longproc_f1`); for the others 1 if the answer is right, else 0: the route,
      all beliefs, three equations, the plan. Partial accuracies and rates of extraction are not computed.
    - Source: the repository, 200 rows per data set (html_to_tsv: 100, 189 and 120). HELMET draws 100 of them by
      `datasets.shuffle`, here they are taken in order.
    - Missing: `pseudo_to_code`, whose metric compiles and runs what the model writes.
    - Traps: the official script calls `eval()` on the equations of an answer and may end with an error; here they are
      computed, and anything else is 0.
    """

    dataset: str
    max_new_tokens: int
    version = "longproc.1"  # names the protocol; `data_sha256` names the rows
    context_length = None  # rows have their own lengths

    def __post_init__(self) -> None:
        allowed = [f"{kind}_{length}" for kind in SPLIT for length in (PLANS if kind == "travel_planning" else LENGTHS)]
        if self.dataset not in allowed:
            reason = "; pseudo_to_code is left out: its metric compiles and runs what the model writes"
            raise UserError(f"task.dataset={self.dataset} of {self.name}: allowed: {', '.join(allowed)}{reason}")
        with suppress(NoData):  # no page is there: a run says so
            super().__post_init__()

    @property
    def kind(self) -> str:
        """The data set without its length."""
        return self.dataset.rpartition("_")[0]

    @property
    def metric(self) -> str:  # type: ignore[override]
        return "longproc_f1" if self.kind == "html_to_tsv" else "longproc_accuracy"

    @property
    def files(self) -> tuple[str, ...]:
        folder, is_trip = f"longproc/{self.kind}", self.kind == "travel_planning"
        names = f"{folder}/{'all' if is_trip else self.dataset}.jsonl", f"{folder}/prompts.yaml"
        if self.kind == "html_to_tsv":
            return *names, *listing(self.root, f"{folder}/webpage/*_{self._length}_*.html")
        return (*names, f"{folder}/examples.jsonl") if is_trip else names

    @property
    def _length(self) -> str:
        return self.dataset.rpartition("_")[2]

    @property
    def row_numbers(self) -> Sequence[int]:
        """Those of one length. A row without a size is always selected."""
        if self.kind != "travel_planning":
            return super().row_numbers
        sizes = enumerate(_sizes(self.root, self.files[0]))
        return [number for number, size in sizes if size is None or size in PLANS[self._length]]

    def score(self, prediction: str, sample: Sample) -> float:
        (reference, *_), answers = sample.references, sample.choices
        match self.kind:
            case "html_to_tsv":
                return table_f1(prediction, reference)
            case "path_traversal":
                return route(prediction, reference)
            case "tom_tracking":
                return beliefs(prediction, reference)
            case "countdown":
                return equations(prediction, [int(number) for number in answers], int(reference))
            case _:
                return trip(prediction, reference, *answers)

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
        field = SPLIT[self.kind]
        before, after = _template(self.root, self.files[1], field)
        examples = self._examples()

        def read(index: int, row: jsonl.Row) -> Sample:
            fields, reference, answers = self._content(row, examples)
            context, question = before.format(**fields) + fields[field], after.format(**fields)
            return Sample(index, self.name, context, question, "", (reference,), self.max_new_tokens, choices=answers)

        return read

    def _examples(self) -> str:
        """Return the worked examples of a prompt, as LongProc's own solvers write them."""
        if self.kind == "countdown":
            return "\n\n".join(
                f"# Example\nNumbers: {numbers}\nTarget: {target}\n\n{countdown(numbers, target)}"
                for numbers, target in COUNTDOWN_EXAMPLES
            )
        if self.kind == "travel_planning":
            return "\n\n".join(f"# Example\n{_planned(line)}" for line in jsonl.rows(self.root, self.files[2]))
        return ""

    def _content(self, row: jsonl.Row, examples: str) -> tuple[dict[str, str], str, tuple[str, ...]]:
        """Return the fields of the template, the right answer, and what else the metric must know."""
        match self.kind:
            case "html_to_tsv":
                names = "task_topic", "task_description", "filtering_instruction", "tsv_header"
                page = find(self.root, f"longproc/html_to_tsv/{jsonl.text(row, 'html_path')}").read_text("utf-8")
                return {name: jsonl.text(row, name) for name in names} | {"html_str": page}, jsonl.text(row, "gt"), ()
            case "path_traversal":
                cities = dict(zip(("src_city", "dst_city"), jsonl.texts(row, "question_repr"), strict=True))
                fields = {"city_context": jsonl.text(row, "context_nl")} | cities
                return fields, jsonl.text(row, "answer_nl"), ()
            case "tom_tracking":
                names = "story_components", "story", "question"
                return {name: jsonl.text(row, name) for name in names}, jsonl.text(row, "solution"), ()
            case "countdown":
                numbers, target = jsonl.field(row, "nums"), jsonl.field(row, "target")
                if not isinstance(numbers, list) or not all(isinstance(number, int) for number in [*numbers, target]):
                    raise UserError(f"its nums are {numbers!r}, its target {target!r}: whole numbers")
                fields = {"demonstration": examples, "nums": str(numbers), "target": str(target)}
                return fields, str(target), tuple(map(str, numbers))
            case _:
                fields = {"demonstration": examples, "problem": jsonl.text(row, "disambig_question_text")}
                cities, days = (jsonl.text(row, f"ground_truth_{name}") for name in ("cities", "durations"))
                return fields, cities, (days,)


def _planned(line: jsonl.Line) -> str:
    try:
        row = line.read()
        return f"{jsonl.text(row, 'disambig_question_text')}\n\n{travel(row)}"
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{line.place}: it is no problem with a plan: {type(error).__name__}: {error}") from None


_sizes = jsonl.column(lambda row: jsonl.integer(row, "estimated_output_tokens"))


def _template(root: str | None, name: str, field: str) -> tuple[str, str]:
    """Return the user's prompt of a file, before and after one of its fields. Raises UserError if it is none."""
    path, mark = find(root, name), f"{{{field}}}"
    try:
        before, after = yaml.safe_load(path.read_text("utf-8"))["USER_PROMPT"].split(mark)
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is no prompt of LongProc: it needs USER_PROMPT, a text with one {mark}") from None
    return before, after


def tagged(answer: str, tag: str) -> str | None:
    """Return the text between the first <tag> and the first </tag>, None if either is missing."""
    start, end = answer.find(f"<{tag}>"), answer.find(f"</{tag}>")
    return None if -1 in (start, end) else answer[start + len(tag) + 2 : end].strip()


def route(answer: str, reference: str) -> float:
    """1 if the route is the reference, else 0."""
    return float(tagged(answer, "Route") == reference.strip())


def beliefs(answer: str, reference: str) -> float:
    """1 if all lines with a dash equal the reference's but for marks and small words, else 0."""
    return float(_beliefs(answer) == _beliefs(reference))


def _beliefs(text: str) -> list[str]:
    dashed = "\n".join(line for line in text.splitlines() if line.strip().startswith("-"))
    contents = (line[1:].strip() for line in dashed.strip().split("\n") if line.startswith("-"))
    words = (" ".join(FILLERS.sub(" ", content.lower().translate(MARKS)).split()) for content in contents)
    return [belief for belief in words if belief]


def equations(answer: str, numbers: Sequence[int], target: int) -> float:
    """1 if three right equations use each number once and lead to the target, else 0."""
    solution, remaining = tagged(answer, "Solution"), list(numbers)
    lines = [] if solution is None else solution.split("\n")
    if len(lines) != 3:
        return 0.0
    try:
        for line in lines:
            side, result = line.strip().split("=")
            sign = next(sign for sign in OPERATORS if sign in side)
            first, second = (int(part) for part in side.split(sign))
            if OPERATORS[sign](first, second) != int(result):
                return 0.0
            remaining.remove(first)
            remaining.remove(second)
            remaining.append(int(result))
    except (ValueError, StopIteration, ArithmeticError):
        return 0.0
    return float(remaining[0] == target)


def trip(answer: str, cities: str, durations: str) -> float:
    """1 if the plan visits the cities in their order for as many days, else 0; both are as in "A**B" and "3**5"."""
    plan = _stays(tagged(answer, "Plan") or "")
    expected = [
        (city, int(days))
        for city, days in zip(filter(None, cities.split("**")), filter(None, durations.split("**")), strict=True)
    ]
    return float(plan[: len(expected)] == expected)


def _stays(text: str) -> list[tuple[str, int]]:
    """Cities with days of stay, from the days of the flights between them."""
    spans, flights, total = list[str](), list[tuple[str, str, str]](), None
    for line in text.split("\n"):
        if days := re.search(r"European cities for (\d+) days", line):
            total = int(days[1])
        if span := re.search(r"\d+-\d+", line):
            spans.append(span[0])
            if int(span[0].split("-")[1]) == total:
                break
        if flight := re.search(r".*Day (\d+).*from (\w+) to (\w+)", line):
            flights.append((flight[1], flight[2], flight[3]))
    if not spans or not flights:
        return []
    cities = [flights[0][1], *(city for _, _, city in flights)]
    days = [1, *(int(day) for day, _, _ in flights), int(spans[-1].split("-")[1])]
    return [(city, end - start + 1) for city, (start, end) in zip(cities, pairwise(days), strict=True)]


def table_f1(answer: str, reference: str) -> float:
    """F1 of the rows of a table in a block of tsv: rows of each side that the other has, words joined."""
    block = re.search(r"```tsv([\s\S]*)```", answer)
    text = block[1] if block else answer.split("```tsv")[1] if "```tsv" in answer else answer
    try:
        rows, expected = _table(text.strip()), _table(reference)
    except (ValueError, IndexError, csv.Error):
        return 0.0
    if not rows or not expected or len(rows[0]) != len(expected[0]):
        return 0.0
    precision = sum(row in expected for row in rows) / len(rows)
    recall = sum(row in rows for row in expected) / len(expected)
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def _table(text: str) -> list[tuple[str, ...]]:
    """Rows without the header, incomplete ones as not available, but for the last. Raises ValueError or IndexError."""
    header, *rows = csv.reader(text.strip().split("\n"), delimiter="\t")
    if len(set(header)) < len(header):
        raise ValueError("the header names a column twice")
    if len(rows[-1]) != len(header):
        rows.pop()
    full_rows = (row if len(row) == len(header) else ["N/A"] * len(header) for row in rows)
    return [tuple("".join(english(cell)) for cell in row) for row in full_rows]
