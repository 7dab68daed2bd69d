"""`kvbench heads --output FILE`: what each head is worth when a model repeats contexts, as a table to use elsewhere."""

from collections.abc import Callable, Sequence
from pathlib import Path

from kvbench.cli.errors import Exit, tracebacks_in
from kvbench.cli.sweep import checked
from kvbench.cli.terminal import tell
from kvbench.cli.usage import Parser, show
from kvbench.config.overrides import parse
from kvbench.support.errors import UserError

USAGE = """kvbench heads [settings] --output FILE: read the contexts of a task, let the model repeat them, and write the
largest KVzip score that each KV head gives any pair: a head table, for policies that keep whole heads. Settings are
those of kvbench run that say what is read (model, task, seed, score.chunk, score.repeat_prompt); several tasks are
taken together. FILE holds the numbers, the model's hash and how they were found; a name in .tsv holds the numbers
alone, a line a layer, in the format of DuoAttention's full_attention_heads.tsv.

  kvbench heads task=ruler/niah_single_1 task.samples=4 --output heads.json
  kvbench run task=ruler/vt policy=kvzip_head score=head_table score.path=heads.json
  kvbench run policy=duo_attention score.path=heads.json budget=0.5
"""
FIXED = ("policy", "score", "budget", "schedule", "results")
"""Settings that say what is done with what was read."""
FREE = tuple(f"score.{name}" for name in ("chunk", "repeat_prompt", "continue_prompt", "continue_end", "turn", "head"))


def main(arguments: Sequence[str]) -> int:
    """Write a table. Raises ValueError for bad settings and for an output that cannot be written."""
    if not arguments or any(argument in ("-h", "--help") for argument in arguments):
        show(USAGE)
        return Exit.OK if arguments else Exit.USAGE
    parser = Parser("heads")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("settings", nargs="*")
    given = parser.parse_intermixed_args(arguments)
    if not given.output.parent.is_dir():
        raise UserError(
            f"--output {given.output}: there is no folder {given.output.parent}: make it, or name another file"
        )
    asked = parse(given.settings)
    for one in asked:
        if one.key.split(".")[0] in FIXED and one.key not in FREE:
            raise UserError(
                f"heads takes no {one.key}: it repeats whole contexts with score=kvzip and cuts nothing: leave it out"
            )
    _, cells = checked([*asked, *parse(("policy=kvzip_head", "score=kvzip", "budget=1.0"))])
    if len({cell.model for cell in cells}) > 1 or len({cell.score for cell in cells}) > 1:
        raise UserError("heads makes one table: name one model and one value of each score setting")
    from kvbench.probes.calibration import calibrate
    from kvbench.run.plan import plan

    planned = plan(cells, set())
    with tracebacks_in(None):
        table = calibrate(planned, _told(planned.prefills_to_do))
    table.write(given.output)
    layers, heads = table.shape
    tell(f"{given.output}: {layers} layers of {heads} KV heads of model {table.model}")
    return Exit.OK


def _told(total: int) -> Callable[[int], None]:
    return lambda read: tell(f"{read}/{total} contexts")
