"""Tells Hydra where plugins keep their settings: the one place where it learns of folders besides kvbench's own."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from kvbench.support.plugins import sources


class InstalledPlugins(SearchPathPlugin):
    """The folders `conf` of the packages behind the entry points `kvbench.plugins`."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Look there after kvbench's own settings, so that nothing of those can be replaced."""
        for source in sources()[1:]:
            search_path.append(provider=str(source), path=f"file://{source.conf.resolve()}")


def find_plugins() -> None:
    """Let what is composed from here on find them. Asking again changes nothing."""
    Plugins.instance().register(InstalledPlugins)
