"""`kvbench heads --output FILE`: what is measured once per head of a model, as a file for `kvbench run`."""

import argparse
from pathlib import Path

from kvbench.cli.errors import Exit
from kvbench.cli.parser import Parser, Words
from kvbench.cli.terminal import tell
from kvbench.support.errors import UserError

FIXED = ("policy", "score", "budget", "schedule", "results")
"""Settings that say what is done with the context that was read."""
FREE = tuple(f"score.{name}" for name in ("chunk", "repeat_prompt", "continue_prompt", "continue_end", "turn", "head"))


def declare(parser: Parser) -> None:
    """The flags of the command."""
    parser.description = """
Let the model repeat the contexts of a task, and write the largest KVzip score of each KV head: a head table, for \
policies that keep or evict complete heads. Takes the settings model, task, seed, score.chunk and score.repeat_prompt \
of kvbench run; several tasks are combined. With --queries: read the prompts of tasks, and write statistics of the \
queries of each head before their rotation, for score=triattention.
"""
    parser.epilog = """
  kvbench heads task=ruler/niah_single_1 task.samples=4 --output heads.json
  kvbench run task=ruler/vt policy=kvzip_head score=head_table score.path=heads.json
  kvbench run policy=duo_attention score.path=heads.json budget=0.5
  kvbench heads --queries task=ruler/vt task.samples=20 --output queries.safetensors
  kvbench run policy=triattention score.statistics=queries.safetensors budget=512
"""
    parser.bare_exit = Exit.USAGE
    parser.words = Words("[settings]", groups=("model", "task", "data"))
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="the numbers, the model's hash and the settings; a name in .tsv: only the numbers, one line per layer, "
        "in the format of DuoAttention's full_attention_heads.tsv",
    )
    parser.add_argument(
        "--queries", action="store_true", help="measure the queries of the heads; the file is in safetensors format"
    )


def main(flags: argparse.Namespace) -> int:
    """Write a table. Raises UserError for bad settings and for an output that cannot be written."""
    from kvbench.config.overrides import parse
    from kvbench.config.sweep import checked, refuse_around
    from kvbench.probes.calibration import calibrate
    from kvbench.probes.query_statistics import query_statistics
    from kvbench.run.plan import plan

    if not flags.output.parent.is_dir():
        folder = flags.output.parent
        raise UserError(f"--output {flags.output}: there is no folder {folder}: make it, or name another file")
    if flags.output.is_dir():
        raise UserError(f"--output {flags.output} is a folder: name a file")
    overrides = parse(flags.words)
    refuse_around(overrides, "kvbench heads")
    does = "reads complete prompts" if flags.queries else "repeats complete contexts with score=kvzip"
    for override in overrides:
        if override.key.split(".")[0] in FIXED and (flags.queries or override.key not in FREE):
            raise UserError(f"heads takes no {override.key}: it {does} and evicts nothing; leave it out")
    method = ("policy=full",) if flags.queries else ("policy=kvzip_head", "score=kvzip", "budget=1.0")
    _, cells = checked([*overrides, *parse(method)], tell)
    if len({cell.model for cell in cells}) > 1 or len({cell.score for cell in cells}) > 1:
        raise UserError("heads makes one table: name one model and one value of each score setting")
    planned = plan(cells, set())
    measure = query_statistics if flags.queries else calibrate
    measured = measure(planned, lambda read: tell(f"{read}/{planned.prefills_to_do} contexts"))
    measured.write(flags.output)
    layers, heads = measured.shape
    kind = "query" if flags.queries else "KV"
    tell(f"{flags.output}: {layers} layers of {heads} {kind} heads of model {measured.model}")
    return Exit.OK
