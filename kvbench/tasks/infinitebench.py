"""InfiniteBench: the published rows, and generated ones of three tasks in any length.

    context    The pass key is 71432. Remember it. 71432 is the pass key. The grass is green. The sky is blue. ...
    input      What is the pass key?
    answer     ["71432"]
    options    []

Rows: https://huggingface.co/datasets/xinrongzhang2022/InfiniteBench, a file per task. Rows and average tokens: passkey
590 / 122k, number_string 590 / 122k, kv_retrieval 500 / 90k, longbook_sum_eng 103 / 172k, longbook_qa_eng 351 / 193k,
longbook_choice_eng 229 / 184k, longdialogue_qa_eng 200 / 104k, longbook_qa_chn 175 / 2069k, code_debug 394 / 115k,
code_run 400 / 75k, math_calc 50 / 44k, math_find 350 / 88k.

Follows src/prompt.py, src/eval_utils.py and src/compute_scores.py of https://github.com/OpenBMB/InfiniteBench at
88b3daa. Published limits of prompts: 131072 tokens for the models of YaRN, 128000 in LAVa, 127000 for GPT-4.

`answer` is a text, a number, a list of one, or a list of several, depending on the task and the year; the official
scorer fails on some of the older ones or scores them 0:

Rows published today:                            older files and copies, read alike:
passkey, number_string  ["71432"]                "71432"
kv_retrieval            ["5e6b7b90-..."]         "5e6b7b90-..."
code_run, math_find     [4], [88.5]              4, "4", ["4"]
math_calc               "[79, 59, 73]"           [79, 59, 73], [[79, 59, 73]]
longbook_choice_eng,    ["Snowfield"]            "Snowfield", ["Snowfield", "C"]
code_debug                                       (the letter is of the row's options)
all others              ["ACE", "ACE ROTHSTEIN"] "ACE"

Generated rows follow data/construct_synthetic_dataset.py there (89b7855), joined by blanks as the published rows are.
The official file sets no seed: these are rows of the same kind, not the same rows. Published contexts have 5220 lines
of noise or 2500 key-value pairs. Difference: the needle lies at one of 59 depths, and successive samples visit the
depths in an order that covers the whole range early; officially rows are ordered by depth, in kv_retrieval one of 500.

Scorers: each function scores one answer in 0..1; the benchmark's number is the mean over rows, which papers show x 100.
References are texts; the first one counts if one is expected, and a multiple choice has two: the option's text and its
letter. All raise UserError without references. The `loose_` functions are the three tasks that LAVa and kvpress score
more generously than 88b3daa, from experiments/InfiniteBench/src/compute_scores.py of MGDDestiny/Lava at 0873e81;
kvpress gives the same on the released answers. That of longdialogue_qa_eng is the benchmark's own since August 2024.
"""

import json
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, ClassVar, Literal

from kvbench.support.errors import UserError
from kvbench.tasks import jsonl
from kvbench.tasks.files import fill, find, json_object
from kvbench.tasks.metrics import ALL, english, f1, rouge_scorer
from kvbench.tasks.ruler.haystack import NOISE
from kvbench.tasks.ruler.niah import DRAWS
from kvbench.tasks.task import Sample, TokenCounter, require_choice, require_positive

PROMPTS = "infinitebench/prompts.json"
"""A table of templates for each kind of model (`yarn_mistral_templates`, ...): the literals of src/prompt.py."""
Scorer = Literal["official", "official_88b3daa", "loose"]
SINGLE = ("passkey", "number_string", "kv_retrieval")
NUMBERS = ("code_run", "math_find")
CHOICES = ("longbook_choice_eng", "code_debug")
HIDDEN = {"passkey": "pass key", "number_string": "sequence of digits"}
DEPTHS = 59
STRIDE = 36  # steps from depth to depth, about the golden section of DEPTHS
LONGEST = 2**17  # lines or key-value pairs: a tokenizer may make one token of any text
RETRIEVAL = "\n:\"'.,?!{}"
CHOICE = "\n\"'.,?!{}"
LETTERS = "ABCD"
CHOICE_PREFIXES = ("answer is:", "answer:", "answer is", "option is")
summary_scorer = partial(rouge_scorer, "longbook_sum_eng", "rougeLsum", use_stemmer=False)
DEBUG_PREFIXES = ("answer is:", "is:", "answer:", "correct option is:")
Metric = Callable[[str, Sequence[str]], float]


def passkey(prediction: str, references: Sequence[str]) -> float:
    """1 if the first run of the digits 0-9 equals the label, else 0. Also the metric of number_string."""
    digits = re.search(r"[0-9]+", prediction)
    return float(digits is not None and digits[0] == first(references))


def kv_retrieval(prediction: str, references: Sequence[str]) -> float:
    """1 if the label is one of the words after replacing line breaks and ``: " ' . , ? ! { }`` by blanks, else 0."""
    return float(first(references) in _blanked(prediction, RETRIEVAL).split())


def longdialogue(prediction: str, references: Sequence[str]) -> float:
    """1 if the first label is one of the words in upper case, else 0; no label with a blank or small letter matches.

    The rule at 88b3daa.
    """
    return float(first(references) in [word.upper() for word in _blanked(prediction, RETRIEVAL).split()])


def choice(prediction: str, references: Sequence[str]) -> float:
    """1 if the option that the answer names is the right one, else 0. "AB" is a substring of `LETTERS` and no label."""
    answer = prediction.strip()
    first(references)
    if answer[:1] and answer[0] in LETTERS:
        return float(answer[0] in references)
    if answer in references:
        return 1.0
    answer = re.sub(" {2,}", " ", _blanked(answer, CHOICE))
    rest = _after(answer, CHOICE_PREFIXES)
    if rest is not None:
        return float(rest.startswith(tuple(references)))
    return float(next((word in references for word in answer.split() if word in LETTERS), False))


def code_debug(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer begins with the right letter and ``.`` or ``:``, or has letter or name after a phrase, else 0.
    So a bare letter scores 0."""
    name, letter = _pair(references)
    answer = prediction.strip()
    if answer[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    rest = _after(_without_marks(answer), DEBUG_PREFIXES)
    return float(rest is not None and rest.startswith((letter, name)))


def code_run(prediction: str, references: Sequence[str]) -> float:
    """1 if the last word is the label as a whole number, else 0; line breaks and ``. ` ' " :`` become blanks."""
    words = _blanked(prediction, "\n.`'\":").split()
    try:
        return float(int(words[-1]) == number(first(references))) if words else 0.0
    except ValueError:
        return 0.0


def math_find(prediction: str, references: Sequence[str]) -> float:
    """1 if the first number of the answer, its sign ignored, equals the label, else 0.

    Raises UserError: the label is a whole number and the first number of the answer has a fraction; the official scorer
    ends with an error there.
    """
    label, match = number(first(references)), re.search(r"\d+\.\d+|\d+", prediction)
    if match is None:
        return 0.0
    if isinstance(label, int) and "." in match[0]:
        raise UserError(
            f"math_find: the answer's first number {match[0]} has a fraction and the label {label} has none; "
            "the official scorer has no value for it"
        )
    try:
        return float(type(label)(match[0]) == label)
    except ValueError:  # more digits than Python converts: no label has as many
        return 0.0


def math_calc(prediction: str, references: Sequence[str], *, skip_first: bool = False) -> float:
    """Share of the labels that equal the answer's numbers before the first difference: `leading equal / labels`.

    Numbers are runs of the digits 0-9, so signs are dropped and a negative label never matches. `skip_first` ignores
    the answer's first number, as officially for GPT-4, whose prompt is the bare expression.
    """
    first(references)
    numbers = re.findall(r"[0-9]+", prediction)[1 if skip_first else 0 :]
    pairs = zip(references, numbers, strict=False)
    equal = (str(number(label)) == (digits.lstrip("0") or "0") for label, digits in pairs)
    return sum(takewhile(bool, equal)) / len(references)


def qa_english(prediction: str, references: Sequence[str]) -> float:
    """Return the largest F1 of words over the references; the benchmark's page calls it ROUGE F1."""
    first(references)
    answer = english(prediction)
    return max(f1(answer, english(reference)) for reference in references)


def qa_chinese(prediction: str, references: Sequence[str]) -> float:
    """F1 of the multisets of characters, lower case, without white space and punctuation of ASCII and Chinese.

    LongBench's namesake counts the words of jieba instead.
    """
    first(references)
    answer, *labels = ("".join(text.lower().translate(ALL).split()) for text in (prediction, *references))
    return max(f1(answer, label) for label in labels)


def summary(prediction: str, references: Sequence[str]) -> float:
    """F of rougeLsum by rouge-score, without stemming: the union of longest common subsequences of all pairs of lines.

    Lines end at line breaks only, as officially in `evaluate.load("rouge")`. LongBench's namesake is the rougeL of the
    package `rouge`, which knows no lines. Raises UserError if rouge-score is not installed.
    """
    first(references)
    return float(summary_scorer().score_multi(list(references), prediction)["rougeLsum"].fmeasure)


def loose_longdialogue(prediction: str, references: Sequence[str]) -> float:
    """1 if the answer contains any label, regardless of case, else 0.

    The rule since August 2024 (https://github.com/OpenBMB/InfiniteBench/issues/18), which LAVa and kvpress have too.
    """
    first(references)
    answer = prediction.strip().upper()
    return float(any(reference.upper() in answer for reference in references))


def loose_choice(prediction: str, references: Sequence[str]) -> float:
    """1 if the first letter of A to D that stands alone and is the last such one on its line is right, else `choice`.

    So "A or B" counts for B as well as for A.
    """
    first(references)
    alone = _alone(prediction.strip(), "A-D")
    return 1.0 if alone in references else choice(prediction, references)


def loose_code_debug(prediction: str, references: Sequence[str]) -> float:
    """1 if the first letter of A to J that stands alone and is the last such one on its line is right, else whether
    the answer without marks, or the text after a phrase (`DEBUG_PREFIXES`) in it, begins with letter or name."""
    name, letter = _pair(references)
    answer = prediction.strip()
    if _alone(answer, "A-J") == letter:
        return 1.0
    answer = _without_marks(answer)
    if answer.startswith((letter, name)):
        return 1.0
    rest = _after(answer, DEBUG_PREFIXES)
    return float(rest is not None and rest.startswith((letter, name)))


def first(references: Sequence[str]) -> str:
    """Return the reference that counts. Raises UserError if there is none."""
    if not references:
        raise UserError("a prediction is scored against at least one reference, got none")
    return references[0]


def _pair(references: Sequence[str]) -> tuple[str, str]:
    """Text and letter of the right option. Raises UserError for other references."""
    if len(references) != 2:
        raise UserError(f"a multiple choice has two references, text and letter, got {len(references)}")
    return references[0], references[1]


def number(text: str) -> int | float:
    """Return a label that is a number. Raises UserError for others."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    raise UserError(f"the label {text!r} is not a number")


def _blanked(text: str, characters: str) -> str:
    """Return a text with a blank for each of these characters."""
    return text.translate(dict.fromkeys(map(ord, characters), " "))


def _without_marks(text: str) -> str:
    """Return an answer to code_debug without quotes, dashes, asterisks, line breaks and the word option."""
    return re.sub(" {2,}", " ", re.sub("[Oo]ption", " ", _blanked(text, "\n`'\"-*")))


def _after(text: str, phrases: Sequence[str]) -> str | None:
    """Return the text one character after the first of the phrases that occurs, in their order; None if none occurs."""
    for phrase in phrases:
        place = text.find(phrase)
        if place >= 0:
            return text[place + len(phrase) + 1 :]
    return None


def _alone(text: str, letters: str) -> str | None:
    match = re.search(rf"\b[{letters}]\b(?!.*\b[{letters}]\b)", text)
    return match[0] if match else None


OFFICIAL_88B3DAA: dict[str, Metric] = {
    "passkey": passkey,
    "number_string": passkey,
    "kv_retrieval": kv_retrieval,
    "longdialogue_qa_eng": longdialogue,
    "longbook_sum_eng": summary,
    "longbook_choice_eng": choice,
    "longbook_qa_eng": qa_english,
    "longbook_qa_chn": qa_chinese,
    "math_find": math_find,
    "math_calc": math_calc,
    "code_run": code_run,
    "code_debug": code_debug,
}
OFFICIAL = OFFICIAL_88B3DAA | {"longdialogue_qa_eng": loose_longdialogue}
LOOSE = OFFICIAL | {"longbook_choice_eng": loose_choice, "code_debug": loose_code_debug}
METRICS: dict[str, dict[str, Metric]] = {"official": OFFICIAL, "official_88b3daa": OFFICIAL_88B3DAA, "loose": LOOSE}
"""The metric of each task by scorer."""
MEMBERS = tuple(OFFICIAL)


def metric_of(member: str, scorer: str, skip_first: bool = False) -> Metric:
    """Return the metric of a task. `skip_first` applies to math_calc."""
    if member == "math_calc":
        return partial(math_calc, skip_first=skip_first)
    return METRICS[scorer][member]


@dataclass(frozen=True, kw_only=True)
class InfiniteBench(jsonl.RowTask):
    """The published rows of one task, `member`.

    templates: a table of infinitebench/prompts.json. scorer: the benchmark's own; its own of June 2024, which differs
    in longdialogue_qa_eng; or LAVa's `loose` one, which differs in longbook_choice_eng and code_debug. label_fix: take
    the label of kv_retrieval out of its list; false scores 0 on the rows as published today, like the official scorer.

    - Protocol: OpenBMB/InfiniteBench 88b3daa, `src/{prompt,eval_utils,compute_scores}.py`; the templates of `prompt.py`
      are stored in `infinitebench/prompts.json`; the default is the set for open models (`task.templates` chooses).
      Prompts have no chat template and are truncated in the middle; first and last half are decoded together (LongBench
      decodes each alone).
    - Split: after the context; math_find and code_run name the target before it too.
    - Metric: `task.scorer=official`, or `loose`, LAVa's, which differs in longbook_choice_eng and code_debug. In
      longdialogue_qa_eng any name in the answer counts, as officially since August 2024 and in LAVa and kvpress;
      `official_88b3daa` is the rule before, the first name as one word in capitals (Claude-2: 46.5 then, 53.5 now).
      longbook_sum_eng is rouge-score's rougeLsum, without stemming.
    - Source: `infinitebench/TASK.jsonl` of xinrongzhang2022/InfiniteBench.
    - Traps: the official scorer gives 0 to every row of kv_retrieval as published today, because the label is a list;
      `task.label_fix=false` reproduces that. LAVa's table needs the loose scorer (Yi-34B En.MC: 38.4 with the official
      one, 46.3 with the loose one). The official limit for answers of math_calc is 30000 tokens; here it is 1000.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("label_fix",)
    member: str
    max_new_tokens: int
    templates: str = "yarn_mistral"
    scorer: Scorer = "official"
    label_fix: bool = True
    decodes_joined = True
    context_length = None  # rows have their own lengths

    def __post_init__(self) -> None:
        require_choice(self, "member", MEMBERS)
        super().__post_init__()
        if not self.label_fix and (self.member != "kv_retrieval" or self.scorer != "official"):
            raise UserError(f"task.label_fix=false of {self.name}: of the official scorer of kv_retrieval only")

    @property
    def metric(self) -> str:
        fixed = "_label_fix" if self.member == "kv_retrieval" and self.label_fix else ""
        return f"infinitebench_{self.scorer}{fixed}"

    def score(self, prediction: str, sample: Sample) -> float:
        return metric_of(self.member, self.scorer, self.templates == "gpt4")(prediction, sample.references)

    @property
    def version(self) -> str:
        return f"infinitebench-88b3daa-{self.templates}.{3 if self.member == 'longdialogue_qa_eng' else 2}"

    @property
    def files(self) -> tuple[str, ...]:
        return f"infinitebench/{self.member}.jsonl", PROMPTS

    def row_reader(self, tokens: TokenCounter) -> Callable[[int, jsonl.Row], Sample]:
        if self.member == "longbook_sum_eng":
            summary_scorer()  # before the first sample, if it is missing
        template = self._template()

        def read(index: int, row: jsonl.Row) -> Sample:
            filled, answer = fields(self.member, row), jsonl.field(row, "answer")
            choices = options(row) if self.member in CHOICES else ()
            labels = references(self.member, answer, choices) if self.label_fix else (str(answer),)
            context, question = fill(template, filled, PROMPTS)
            return Sample(index, self.name, context, question, "", labels, self.max_new_tokens)

        return read

    def _template(self) -> str:
        """Of the table `templates`; GPT-4's prompt of math_calc is the bare expression. Raises UserError."""
        tables, name = json_object(self.root, PROMPTS), f"{self.templates}_templates"
        texts = tables.get(name)
        if not isinstance(texts, dict) or not isinstance(texts.get(self.member), str):
            allowed = ", ".join(sorted(key.removesuffix("_templates") for key in tables if key.endswith("_templates")))
            path = find(self.root, PROMPTS)
            raise UserError(f"{path} has no {name} with {self.member}: task.templates is one of {allowed or 'none'}")
        return "{context}" if (self.templates, self.member) == ("gpt4", "math_calc") else texts[self.member]


@dataclass(frozen=True, kw_only=True)
class SyntheticInfiniteBench(InfiniteBench):
    """Generated rows of one task. `context_length` is in tokens of the model, template and answer included.

    - Protocol: passkey, number_string and kv_retrieval of any length, generated with a seed. The official generator
      sets no seed, so these rows are of the same kind but not the same.
    - Split: after the context.
    - Metric: InfiniteBench's.
    - Source: generated; prompts from `infinitebench/prompts.json`.
    - Traps: their numbers are not InfiniteBench's.
    """

    context_length: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "member", (*HIDDEN, "kv_retrieval"))
        require_positive(self, "context_length")

    @property
    def version(self) -> str:
        return f"infinitebench-89b7855-synthetic-{self.templates}.2"

    @property
    def files(self) -> tuple[str, ...]:
        return (PROMPTS,)

    @property
    def row_numbers(self) -> Sequence[int]:
        return range(self.samples)  # as many as are requested

    def generate(self, count_tokens: TokenCounter, indices: Collection[int]) -> Iterator[Sample]:
        """As long as `context_length` allows. Raises UserError for a negative index or if no row fits."""
        if any(index < 0 for index in indices):
            raise UserError(f"sample indices start at 0, got {min(indices)}")
        template, sample_of, size = self._template(), self.row_reader(count_tokens), 1

        def tokens(row: jsonl.Row) -> int:
            prompt = "".join(fill(template, fields(self.member, row), PROMPTS))
            return count_tokens(prompt) + self.max_new_tokens

        for index in sorted(indices):
            row_of = partial(self._row, index)
            size = _largest(lambda size, row_of=row_of: tokens(row_of(size)), self.context_length, max(size, 1))
            if size == 0:
                raise UserError(
                    f"task.context_length={self.context_length} cannot hold {self.name}: "
                    f"sample {index} takes {tokens(row_of(1))}"
                )
            yield sample_of(index, row_of(size))

    def _row(self, index: int, size: int) -> jsonl.Row:
        """Return the row of a sample with `size` lines of noise or key-value pairs."""
        rng, depth = random.Random(f"{self.seed} {self.member} {index}"), index * STRIDE % DEPTHS
        if self.member == "kv_retrieval":
            records: dict[str, str] = {}
            while len(records) < size:
                value, key = DRAWS["uuids"](rng), DRAWS["uuids"](rng)
                records[key] = value
            return retrieval(records, list(records)[(size - 1) * depth // (DEPTHS - 1)])
        digits = [str(rng.randint(0, 9)) for _ in range(5)]
        if self.member == "number_string":
            for extra in range(5):
                place = rng.randint(0, 4 + extra)
                digits.insert(place, digits[place])
        return hidden(HIDDEN[self.member], "".join(digits), size, size * depth // (DEPTHS - 1))


def hidden(name: str, digits: str, lines: int, before: int) -> jsonl.Row:
    """Return the row whose digits follow `before` of `lines` lines."""
    needle = f"The {name} is {digits}. Remember it. {digits} is the {name}."
    context = " ".join([NOISE] * before + [needle] + [NOISE] * (lines - before))
    return {"context": context, "input": f"What is the {name}?", "answer": [digits]}


def retrieval(records: Mapping[str, str], key: str) -> jsonl.Row:
    """Return the row that asks for the value of a key."""
    listed = ", ".join(f'"{name}": "{value}"' for name, value in records.items())
    return {
        "context": f"JSON data:\n{{{listed}}}",
        "input": f'\nKey: "{key}"\nThe value associated with the specified key is: ',
        "answer": [records[key]],
    }


def _largest(tokens: Callable[[int], int], limit: int, guess: int) -> int:
    """Return the largest size of at most `limit` tokens, 0 if there is none; few calls from a good guess."""
    low, high, step = guess, guess, 1
    while low and tokens(low) > limit:
        low, high, step = max(0, low - step), low, 2 * step
    if low == guess:
        while high < LONGEST and tokens(high + step) <= limit:
            low, high, step = high + step, high + step, 2 * step
        high += step
    return low + bisect_right(range(low + 1, high), limit, key=tokens)


def fields(member: str, row: jsonl.Row) -> dict[str, str]:
    """Return the template fields of a row of a task.

    Raises UserError if a field is missing or has another type, or if the context is empty.
    """
    question = jsonl.text(row, "input")
    filled = {"context": jsonl.nonempty_text(row, "context"), "input": question, "question": question}
    if member in CHOICES:
        filled |= {f"OPTION_{letter}": option for letter, option in zip(LETTERS, options(row), strict=True)}
    elif member == "math_find":
        match = re.search(r"The .+ of", question)  # "The largest number of the list is: "
        if match is None:
            raise UserError(f"its input {question!r} names no number as 'The ... of' does")
        filled["prefix"] = f"What is {match[0].lower().removesuffix(' of')} in the following list?"
    elif member == "code_run":
        call = re.search(r"func_[0-9]+\(-?[0-9]+\)", question)
        if call is None:
            raise UserError(f"its input {question!r} calls no function as func_1(2) does")
        filled |= {"func": call[0].partition("(")[0], "func_call": call[0]}
    return filled


def options(row: jsonl.Row) -> list[str]:
    """Return the four options of a multiple choice. Raises UserError for others."""
    values = jsonl.field(row, "options")
    if not isinstance(values, list) or len(values) != len(LETTERS) or not all(isinstance(v, str) for v in values):
        raise UserError(f"its options are {str(values)[:80]}: a list of four texts")
    return values


def references(member: str, answer: Any, options: Sequence[str]) -> tuple[str, ...]:
    """Return the references of a row of a task; of a multiple choice the option's text and its letter.

    Raises UserError: the answer is empty, of another type, or not one of the options.
    """
    if member == "math_calc":
        try:
            values = json.loads(answer) if isinstance(answer, str) else answer
        except (ValueError, RecursionError):
            values = None
        if isinstance(values, list) and len(values) == 1 and isinstance(values[0], list):
            values = values[0]
        if not isinstance(values, list) or not values or any(type(value) is not int for value in values):
            raise UserError(f"its answer is {_shortened(answer)}: a list of whole numbers, or such a list as a text")
        return tuple(map(str, values))
    values = answer if isinstance(answer, list) else [answer]
    if not values or any(isinstance(value, bool) or not isinstance(value, (str, int, float)) for value in values):
        raise UserError(f"its answer is {_shortened(answer)}: a text, a number or a list of these")
    texts = tuple(str(value) for value in values)
    if not all(texts):
        raise UserError(f"its answer {_shortened(answer)} holds an empty text")
    if member in CHOICES:
        if len(texts) == 2 and texts[1] in tuple(LETTERS):
            return texts
        if len(texts) != 1:
            raise UserError(
                f"its answer {_shortened(answer)} has {len(texts)} labels: the option, or option and letter"
            )
        if texts[0] not in options:
            raise UserError(f"its answer {texts[0]!r} is none of its options {_shortened(list(options))}")
        return texts[0], LETTERS[list(options).index(texts[0])]
    if member in (*SINGLE, *NUMBERS) and len(texts) > 1:
        raise UserError(f"its answer {_shortened(answer)} has {len(texts)} labels, {member} has one")
    if member in NUMBERS:
        number(str(values[0]))
    return texts


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
