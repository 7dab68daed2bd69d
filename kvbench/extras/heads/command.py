"""`kvbench heads --output FILE`: what is measured once per head of a model, as a file for `kvbench run`."""

import argparse
from pathlib import Path

from kvbench.cli.errors import ExitCode
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell
from kvbench.support.errors import UserError

FIXED = ("policy", "score", "budget", "schedule", "results")
"""Settings that say what is done with the context that was read."""
FREE = tuple(f"score.{name}" for name in ("chunk", "repeat_prompt", "continue_prompt", "continue_end", "turn", "head"))
REPEATED = ("policy=kvzip_head", "score=kvzip", "budget=1.0")
ANSWERED = ("policy=plain", "policy.sink=4", "policy.recent=1", "budget=1.0", "schedule.evict_after=context")
"""What is read for a budget table, but for the score."""
SCORE = ("score=expected_attention", "score.epsilon=0.02")
"""The score of the published budget table."""


def declare(parser: Parser) -> None:
    """Add the flags of the command."""
    parser.description = """
Let the model repeat the contexts of a task, and write the largest KVzip score of each KV head: a head table, for \
policies that keep or evict complete heads. Takes the settings model, task, seed, score.chunk and score.repeat_prompt \
of kvbench run; several tasks are combined. With --queries: read the prompts of tasks, and write statistics of the \
queries of each head before their rotation, for score=triattention.

An --output named .npy is LU-KV's budget table: what each head can do without, by the attention of answers to the \
contexts of a task. Takes any score and its settings, and policy.sink, recent, window and pool as well; several tasks \
are averaged. The table is of this model and this score.
"""
    parser.epilog = """
  kvbench heads task=ruler/niah_single_1 task.samples=4 --output heads.json
  kvbench run task=ruler/vt policy=kvzip_head score=head_table score.path=heads.json
  kvbench run policy=duo_attention score.path=heads.json budget=0.5
  kvbench heads --queries task=ruler/vt task.samples=20 --output queries.safetensors
  kvbench run policy=triattention score.statistics=queries.safetensors budget=512
  kvbench heads task=ruler/niah_single_1 task.samples=8 score=expected_attention --output budgets.npy
  kvbench run task=ruler/vt policy=lukv policy.layers.path=budgets.npy score=expected_attention budget=0.2
"""
    parser.bare_exit = ExitCode.USAGE
    parser.words = Words("[settings]", groups=("model", "task", "data"))
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="the numbers, the model's hash and the settings; a name in .tsv: only the numbers, one line per layer, "
        "in the format of DuoAttention's full_attention_heads.tsv; in .npy: LU-KV's table of budgets",
    )
    parser.add_argument(
        "--queries", action="store_true", help="measure the queries of the heads; the file is in safetensors format"
    )


def main(flags: argparse.Namespace) -> int:
    """Write a table. Raises UserError for bad settings and for an output that cannot be written."""
    from kvbench.config.overrides import parse
    from kvbench.extras.heads.budget_table import budget_table
    from kvbench.extras.heads.calibration import calibrate, query_statistics
    from kvbench.report.report_file import file_to
    from kvbench.run.plan import plan
    from kvbench.work.planned import checked, refuse_around

    if not flags.output.parent.is_dir():
        folder = flags.output.parent
        raise UserError(f"--output {flags.output}: there is no folder {folder}: make it, or name another file")
    if flags.output.is_dir():
        raise UserError(f"--output {flags.output} is a folder: name a file")
    overrides = parse(flags.words)
    refuse_around(overrides, "kvbench heads")
    keys = {override.key for override in overrides}
    if flags.queries:
        measure, does, free, method = query_statistics, "reads complete prompts", (), ("policy=full",)
    elif flags.output.suffix == ".npy":
        measure, does = budget_table, "reads answers to complete contexts"
        free = tuple(key for key in keys if key.startswith(("score", "policy.")))
        words = (*ANSWERED, *(() if "score" in keys else SCORE))
        method = tuple(word for word in words if word.partition("=")[0] not in keys)
    else:
        measure, does, free, method = calibrate, "repeats complete contexts with score=kvzip", FREE, REPEATED
    for override in overrides:
        if override.key.split(".")[0] in FIXED and override.key not in free:
            raise UserError(f"heads takes no {override.key}: it {does} and evicts nothing; leave it out")
    _, cells = checked([*overrides, *parse(method)], tell)
    if len({(cell.model, cell.score, cell.policy) for cell in cells}) > 1:
        raise UserError("heads makes one table: name one model and one value of each score setting and policy setting")
    planned = plan(cells, set())
    measured = measure(planned, lambda read: tell(f"{read}/{planned.prefills_to_do} contexts"))
    with file_to(flags.output) as path:
        measured.write(path)
    layers, heads = measured.shape
    kind = "query" if flags.queries else "KV"
    tell(f"{flags.output}: {layers} layers of {heads} {kind} heads of model {measured.model}")
    return ExitCode.OK
