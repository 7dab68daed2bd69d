"""`kvbench run`: plan what the command line asks for, run what is missing, print the table of its cells."""

import sys
from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kvbench import paths
from kvbench.cli.compose import combinations, parse
from kvbench.cli.errors import Exit, guarded, tracebacks_in
from kvbench.cli.progress import progress
from kvbench.cli.sweep import Sweep, sweep, sweep_of
from kvbench.records import read_rows
from kvbench.runner import run


def main(arguments: Sequence[str]) -> int:
    """Run a sweep, or hand the line to Hydra when it has one of Hydra's flags (--help, --cfg, -m, ...)."""
    if any(argument.startswith("-") for argument in arguments):
        return _hydra(list(arguments))
    return run_sweep(sweep(arguments))


def run_sweep(asked: Sweep) -> int:
    """Run what is missing of a sweep. Exit code 4 when some of its samples have failed, now or before."""
    plan = asked.plan
    _announce(asked)
    if plan.rows_to_do:
        with tracebacks_in(asked.results), progress(plan) as shown:
            outcome = run(plan, asked.results, shown)
        print(
            f"kvbench: {outcome.rows} rows from {outcome.prefills} prefills of {outcome.tokens_prefilled} tokens",
            file=sys.stderr,
        )
    return _show(asked)


def _show(asked: Sweep) -> int:
    """The table of the sweep's own cells, whatever else the folder holds."""
    from kvbench.report.table import print_table

    print_table(asked.results, "text", sys.stdout, warn=_told_before, only=asked.holds)
    rows = read_rows(asked.results, warn=_told_before)
    return Exit.INCOMPLETE if any(row.error is not None for row in rows if asked.holds(row)) else Exit.OK


def _told_before(warning: str) -> None:
    """Reading the rows for the plan has printed it."""


def _announce(asked: Sweep) -> None:
    plan = asked.plan
    cells = f"{len(plan.cells)} cell{'s' * (len(plan.cells) != 1)}"
    if not plan.rows_to_do:
        print(f"kvbench: {cells}, all {plan.rows} rows are in {asked.results.path}", file=sys.stderr)
        return
    had = f" ({plan.rows - plan.rows_to_do} rows are there already)" if plan.rows_to_do < plan.rows else ""
    print(
        f"kvbench: {cells}, {plan.rows_to_do} rows to make from {plan.prefills_to_do} prompts{had}; "
        f"results in {asked.results.path}",
        file=sys.stderr,
    )


def _hydra(arguments: list[str]) -> int:
    """Let Hydra handle its own flags. What it composes for a job runs like any other cell."""
    import hydra

    if "--cfg" in arguments or "-c" in arguments:
        _check_single(arguments)
    code: list[int] = []

    def job(config: DictConfig) -> None:
        code.append(guarded(lambda: run_sweep(sweep_of([_plain(config)]))))

    sys.argv = ["kvbench run", *arguments]
    hydra.main(version_base="1.3", config_path=str(paths.conf().resolve()), config_name="run")(job)()
    return max(code, default=Exit.OK)


def _check_single(arguments: Sequence[str]) -> None:
    """Report bad settings of `--cfg` like those of a run. Raises ValueError."""
    asked = parse([one for one in arguments if "=" in one and not one.startswith("-")])
    for one in asked:
        if len(one.values) > 1:
            raise ValueError(f"--cfg shows one cell, {one.text} lists {len(one.values)}: name one")
    list(combinations(asked))


def _plain(config: DictConfig) -> Any:
    return OmegaConf.create({key: value for key, value in config.items() if key != "hydra"})
