"""`kvbench run -m`: Hydra's own multirun, which hands one job per combination to the launcher of `hydra/launcher`."""

import re
import sys
from collections.abc import Callable, Sequence

from hydra import __version__ as hydra_version
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from kvbench.config.compose import content, step_settings, with_members
from kvbench.config.overrides import Override, parse
from kvbench.config.sweep import Tell, checked
from kvbench.support import paths
from kvbench.support.errors import UserError
from kvbench.support.plugins import groups, held_groups, items, plugins, source_of
from kvbench.support.settings_file import member_names

try:  # Hydra has no public call that runs a multirun over given words: hydra.main reads sys.argv
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
except ImportError as error:
    reason = f"-m needs internals of Hydra that version {hydra_version} lacks ({error}): pip install 'hydra-core<1.4'"
    raise UserError(f"{reason}, or leave -m out") from error

EXTRAS, DOT = "++of_extras.", "__of__"
"""How Hydra is told settings of extras."""
OF_HYDRA = re.compile(r"[+~]*hydra[./]")


def multirun(words: Sequence[str], run: Callable[[list[str]], int], tell: Tell, stop: int) -> int:
    """Run every combination as a job of its own; returns the highest exit code of `run`, which gets a job's settings.

    A job that returns `stop` ends the rest. Raises UserError for settings that a run would refuse, and for what Hydra
    refuses.
    """
    written = parse([word for word in words if not OF_HYDRA.match(word)])
    for word in words:
        if OF_HYDRA.match(word) and "searchpath" in word:
            raise UserError(f"{word}: settings are those of kvbench and of installed plugins: leave it out")
        if OF_HYDRA.match(word) and "_target_" in word:
            raise UserError(f"{word}: what Hydra builds is chosen by name: hydra/launcher=NAME, hydra/sweeper=NAME")
    overrides = with_members(written)
    try:
        checked(overrides, tell, everywhere=True)  # Hydra composes every cell with all of the settings
    except ValueError as error:
        patterns = [old.text for old, new in zip(written, overrides, strict=True) if old.values != new.values]
        if not patterns:
            raise
        why = f"-m runs all that {' '.join(patterns)} matches; without -m, what cannot be run is left out"
        raise UserError(f"{error}; {why}") from None
    codes = [0]

    def job(_: DictConfig) -> None:
        settings = [_from_hydra(word) for word in HydraConfig.get().overrides.task]
        GlobalHydra.instance().clear()
        codes.append(run(settings))
        if codes[-1] == stop:
            sys.exit(stop)  # past Hydra, which would go on with the next job

    settings = [_for_hydra(override) for override in overrides]
    try:
        GlobalHydra.instance().clear()
        hydra = Hydra.create_main_hydra2("kvbench run", search_path())
        hydra.multirun("multirun", job, settings + [word for word in words if OF_HYDRA.match(word)])
    except SystemExit as exit:
        return int(exit.code or 0)
    except (HydraException, OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
        # Hydra says of its own words what it likes; what a job raises has become its exit code
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"{' '.join(words)}: {reason}") from None
    finally:
        GlobalHydra.instance().clear()
    return max(codes)


def _for_hydra(override: Override) -> str:
    """A setting as Hydra takes it: those of extras, which no file of `conf` has, as keys of their own."""
    added = (*(f"policy.{name}" for name in step_settings()), *held_groups())
    if not override.key.startswith(added):
        return override.canonical
    return f"{EXTRAS}{override.canonical.replace('.', DOT, override.key.count('.'))}"


def _from_hydra(word: str) -> str:
    """A setting as it was before `_for_hydra`."""
    if not word.startswith(EXTRAS):
        return word
    key, _, value = word.removeprefix(EXTRAS).partition("=")
    return f"{key.replace(DOT, '.')}={value}"


def search_path() -> ConfigSearchPath:
    """Where Hydra looks for settings. kvbench's own come first, so that nothing of those can be replaced.

    Hydra knows files of one name: members of a benchmark are stored for it one by one.
    """
    store = ConfigStore.instance()
    for item in (item for group in groups() for item in items(group).values()):
        if item.name in member_names(item.path.read_text("utf-8")):
            folder, _, name = f"{item.group}/{item.name}".rpartition("/")
            tree = content(item)
            store.store(name, tree, group=folder, package="_global_" if item.group in tree else item.group)
    path = create_config_search_path(str(paths.conf().resolve()))
    for source in map(source_of, plugins()):
        path.append(str(source), f"file://{source.conf.resolve()}")
    return path
