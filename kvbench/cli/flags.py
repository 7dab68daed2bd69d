"""Hydra's own flags of `kvbench run`: --help, --cfg, -m and the others, with bad input reported like that of a run."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from kvbench.cli.errors import Exit, guarded
from kvbench.cli.sweep import checked
from kvbench.config.compose import combinations, with_members
from kvbench.config.overrides import Asked, parse
from kvbench.support import paths
from kvbench.support.errors import UserError

LEGAL = (
    "--help -h, --hydra-help, --cfg -c job|hydra|all, --resolve, --package -p NAME, --info -i, --run -r, "
    "--multirun -m, --shell-completion -sc, --retry-errors, --quiet"
)
INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
SHELLS = ("bash", "fish", "zsh")


class Flags(argparse.ArgumentParser):
    """The flags of Hydra that kvbench has; those that would compose from other files are not among them."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        for names in (("--help", "-h"), ("--hydra-help",), ("--resolve",), ("--run", "-r"), ("--multirun", "-m")):
            self.add_argument(*names, action="store_true")
        self.add_argument("--shell-completion", "-sc", action="store_true")
        self.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
        self.add_argument("--package", "-p")
        self.add_argument("--info", "-i", nargs="?", const="all", choices=INFO)
        self.add_argument("settings", nargs="*")

    def error(self, message: str) -> NoReturn:
        """Raise ValueError instead of printing a usage text."""
        raise UserError(f"run: {message}; legal flags: {LEGAL}")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The flags of a command line. Raises ValueError for unknown ones and for those that do not go together."""
        flags = self.parse_intermixed_args(arguments)
        alone = ("run", "multirun", "cfg", "info", "shell_completion")
        several = [f"--{name.replace('_', '-')}" for name in alone if getattr(flags, name)]
        if len(several) > 1:
            self.error(f"{' and '.join(several)} do not go together")
        if flags.resolve and not (flags.cfg or flags.help):
            self.error("--resolve goes with --cfg or --help")
        if flags.package is not None and not flags.cfg:
            self.error("--package goes with --cfg")
        return flags


def with_flags(arguments: Sequence[str], run: Callable[[Sequence[str]], int]) -> int:
    """Let Hydra handle its own flags once the settings beside them are found legal; its jobs go to `run`.

    Raises ValueError for bad flags and settings, and for what Hydra refuses.
    """
    flags = Flags().read(arguments)
    words = flags.settings
    settings = _completion(words) if flags.shell_completion else _checked(parse(words), flags)
    beside = [argument for argument in arguments if argument not in words]
    codes: list[int] = []

    def job(config: DictConfig) -> None:
        settings = list(HydraConfig.get().overrides.task)
        GlobalHydra.instance().clear()  # a run composes on its own: what a policy takes is read there
        codes.append(guarded(lambda: run(settings)))
        if codes[-1] == Exit.INTERRUPTED:
            sys.exit(Exit.INTERRUPTED)  # past Hydra, which would go on with the next job

    return _hydra(["kvbench run", *beside, *settings], job) or max(codes, default=Exit.OK)


def _checked(asked: Sequence[Asked], flags: argparse.Namespace) -> list[str]:
    """The settings in words that Hydra reads like kvbench. Raises ValueError for what a run would refuse."""
    named, asked = asked, with_members(asked)
    if flags.multirun:
        patterns = [one.text for one, members in zip(named, asked, strict=True) if one.values != members.values]
        try:
            checked(asked, everywhere=True)  # Hydra composes every cell with all of the settings
        except ValueError as error:
            if not patterns:
                raise
            told = f"-m runs all that {' '.join(patterns)} matches; without -m, what cannot be run is left out"
            raise UserError(f"{error}; {told}") from None
        return [one.canonical for one in asked]
    config = OmegaConf.create(combinations(asked)[0])
    for one in asked:
        if len(one.values) > 1:
            raise UserError(f"{one.text} lists {len(one.values)} values: name one, or leave out the flags")
    if flags.run:
        checked(asked)
    if flags.cfg == "job" and flags.package and OmegaConf.select(config, flags.package) is None:
        raise UserError(f"--package {flags.package}: nothing of that name; legal: {', '.join(map(str, config))}")
    ignored = () if "score" in config.policy.takes else ("score",)
    return [one.canonical for one in asked if one.key not in ignored]


def _completion(words: list[str]) -> list[str]:
    """`install=bash` and its like, the only settings beside --shell-completion."""
    legal = [f"{verb}={shell}" for verb in ("install", "uninstall", "query") for shell in SHELLS]
    if len(words) != 1 or words[0] not in legal:
        raise UserError(f"--shell-completion {' '.join(words)}: legal: one of {', '.join(legal)}")
    return words


def _hydra(words: list[str], job: Callable[[DictConfig], None]) -> int:
    """Hydra's main with a command line. Raises ValueError for what it refuses."""
    import hydra

    from kvbench.config.searching import find_plugins

    find_plugins()
    main = hydra.main(version_base="1.3", config_path=str(paths.conf().resolve()), config_name="run")(job)
    try:
        with _command_line(words):
            main()
    except SystemExit as stop:
        # Hydra leaves with 1 for what it was asked wrongly
        return {None: Exit.OK, 0: Exit.OK, Exit.INTERRUPTED: Exit.INTERRUPTED}.get(stop.code, Exit.USAGE)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(f"{' '.join(words)}: {str(error).splitlines()[0]}") from None
    return Exit.OK


@contextmanager
def _command_line(words: list[str]) -> Iterator[None]:
    """Hydra reads sys.argv, and leaves its errors to us when it is asked for full ones."""
    name = "HYDRA_FULL_ERROR"
    before, argv = os.environ.get(name), sys.argv
    os.environ[name], sys.argv = "1", words
    try:
        yield
    finally:
        sys.argv = argv
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
