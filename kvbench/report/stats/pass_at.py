"""pass@k, of several drawn answers to each prompt.

The mean over all answers is avg@k. Chen et al., "Evaluating large language models trained on code" (2021),
https://arxiv.org/abs/2107.03374, equation 1: of n answers of which c are right, 1 - C(n-c, k) / C(n, k) estimates
without bias how often one of k is right.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import comb

from kvbench.records import Row
from kvbench.records.rows import Describe
from kvbench.report.selection import task_settings
from kvbench.support.errors import UserError


def pass_at(rows: Sequence[Row], k: int, describe: Describe) -> list[Row]:
    """Return one row per cell and prompt: its value is pass@k, its sample the number of the prompt.

    A prompt with fewer than k values gets a row with an error. Raises UserError for a cell with fewer than k answers to
    each prompt, and for values other than 0 and 1.
    """
    if k < 1:
        raise UserError(f"pass@{k}: k is a whole number above 0")
    answers: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        drawn = task_settings(describe(row.cell)).get("samples_per_prompt", 1)
        if drawn < k:
            raise UserError(
                f"pass@{k} of {row.policy} {row.budget} ({row.task}): its answers per prompt are {drawn}; run it with "
                f"task.samples_per_prompt={k} or more"
            )
        answers.setdefault((row.cell, row.sample // drawn), []).append(row)
    return [_passed(drawn, prompt, k) for (_, prompt), drawn in answers.items()]


def _passed(answers: Sequence[Row], prompt: int, k: int) -> Row:
    values = [row.value for row in answers if row.value is not None]
    if invalid := [value for value in values if value not in (0.0, 1.0)]:
        raise UserError(
            f"pass@{k} is of answers that are right or wrong: {answers[0].metric} has the value {invalid[0]}"
        )
    common = replace(answers[0], sample=prompt, metric=f"pass@{k}", value=None, error=None)
    if len(values) < k:
        reason = next((row.error for row in answers if row.error), "no value")
        return replace(common, error=f"{len(values)} of {k} answers have a value: {reason}")
    right = sum(value == 1.0 for value in values)
    return replace(common, value=1 - comb(len(values) - right, k) / comb(len(values), k))
