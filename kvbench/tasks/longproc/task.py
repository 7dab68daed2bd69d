"""LongProc without code to run: long answers that follow a procedure. https://github.com/princeton-pli/LongProc

    html_to_tsv      {"html_path": "webpage/W1_0.5k_1.html", "task_topic": "...", "task_description": "...",
                     "filtering_instruction": "", "tsv_header": "a\\tb", "gt": "a\\tb\\n1\\t2"}
    path_traversal   {"context_nl": "...", "question_repr": ["Lille", "York"], "answer_nl": "From Lille, take a ..."}
    tom_tracking     {"story_components": "...", "story": "Step 0: ...", "question": "...", "solution": "- Step 0: ..."}
    countdown        {"nums": [21, 16, 17, 26], "target": 46}
    travel_planning  {"disambig_question_text": "...", "ground_truth_cities": "A**B", "ground_truth_durations": "3**5",
                     "estimated_output_tokens": 1200}

Follows longproc_data.py at 78e873a: the templates are those of the benchmark, read at run time; `search.py` writes the
examples of countdown and travel_planning. The limits of answers are those of HELMET's configs.

pseudo_to_code is refused: its metric compiles and runs what the model writes. Partial accuracies and rates of
extraction are not computed.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import FromFiles, NoData, find, limit_samples, listing, remembered
from kvbench.tasks.longproc import search
from kvbench.tasks.metrics import longproc as metrics
from kvbench.tasks.task import InvalidSample, Sample, Task, Tokens, require_positive

Row = Mapping[str, Any]
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
EXAMPLES = (([40, 19, 23, 7], 29), ([9, 16, 6, 18], 12))
"""Numbers and targets of the examples of countdown."""


@dataclass(frozen=True, kw_only=True)
class LongProc(FromFiles, Task):
    """The rows of one data set in the order of its file; its name ends with the length of the answers."""

    name: str
    dataset: str
    max_new_tokens: int
    samples: int = 50
    seed: int = 42
    version = "longproc.1"  # names the protocol; `data_sha256` names the rows
    context_length = None  # prompts have their own lengths

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = [f"{kind}_{length}" for kind in SPLIT for length in (PLANS if kind == "travel_planning" else LENGTHS)]
        if self.dataset not in allowed:
            reason = "; pseudo_to_code is left out: its metric compiles and runs what the model writes"
            raise UserError(f"task.dataset={self.dataset} of {self.name}: allowed: {', '.join(allowed)}{reason}")
        require_positive(self, "samples", "max_new_tokens")
        with suppress(NoData):  # no page is there: a run says so
            limit_samples(self, lambda: len(self._rows))

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
    def _rows(self) -> Sequence[int]:
        """The rows of one length. A row without a size is always selected."""
        if self.kind != "travel_planning":
            return range(jsonl.count(self.root, self.files[0]))
        sizes = enumerate(_sizes(self.root, self.files[0]))
        return [number for number, size in sizes if size is None or size in PLANS[self._length]]

    def score(self, prediction: str, sample: Sample) -> float:
        (reference, *_), answers = sample.references, sample.choices
        match self.kind:
            case "html_to_tsv":
                return metrics.table_f1(prediction, reference)
            case "path_traversal":
                return metrics.route(prediction, reference)
            case "tom_tracking":
                return metrics.beliefs(prediction, reference)
            case "countdown":
                return metrics.equations(prediction, [int(number) for number in answers], int(reference))
            case _:
                return metrics.trip(prediction, reference, *answers)

    def generate(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[Sample | InvalidSample]:
        before, after = _template(self.root, self.files[1], SPLIT[self.kind])
        examples = self._examples
        for index, line in jsonl.samples(self, self._rows, indices):
            try:
                fields, reference, answers = self._content(line.read(), examples)
                context = before.format(**fields) + fields[SPLIT[self.kind]]
                question = after.format(**fields)
            except ValueError as error:
                yield InvalidSample(index, self.name, f"{line.place}: {error}")
                continue
            new_tokens = self.max_new_tokens
            yield Sample(index, self.name, context, question, "", (reference,), new_tokens, choices=answers)

    @property
    def _examples(self) -> str:
        if self.kind == "countdown":
            shown = (
                f"Numbers: {numbers}\nTarget: {goal}\n\n{search.countdown(numbers, goal)}" for numbers, goal in EXAMPLES
            )
        elif self.kind == "travel_planning":
            shown = map(_planned, jsonl.rows(self.root, self.files[2]))
        else:
            return ""
        return "\n\n".join(f"# Example\n{example}" for example in shown)

    def _content(self, row: Row, examples: str) -> tuple[dict[str, str], str, tuple[str, ...]]:
        """The fields of the template, the right answer, and what else the metric must know."""
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
        return f"{jsonl.text(row, 'disambig_question_text')}\n\n{search.travel(row)}"
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{line.place}: it is no problem with a plan: {type(error).__name__}: {error}") from None


@remembered
def _sizes(root: str | None, name: str) -> tuple[int | None, ...]:
    return tuple(jsonl.values(root, name, _size))


def _size(row: Row) -> int:
    size = jsonl.field(row, "estimated_output_tokens")
    if not isinstance(size, int):
        raise UserError(f"its estimated_output_tokens are {size!r}: a whole number")
    return size


def _template(root: str | None, name: str, field: str) -> tuple[str, str]:
    """The user's prompt of a file, before and after one of its fields. Raises UserError if it is none."""
    path, mark = find(root, name), f"{{{field}}}"
    try:
        before, after = yaml.safe_load(path.read_text("utf-8"))["USER_PROMPT"].split(mark)
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        raise UserError(f"{path} is no prompt of LongProc: it needs USER_PROMPT, a text with one {mark}") from None
    return before, after
