"""The work is done by the process that was asked."""

from dataclasses import dataclass

from kvbench.run.launch.work import SIGNALS, Work, check_signals


@dataclass(frozen=True)
class InProcess:
    """No launcher: signals alone can be set."""

    name: str = "none"
    signals: tuple[str, ...] = SIGNALS

    def __post_init__(self) -> None:
        check_signals(self.signals)

    def launch(self, work: Work) -> None:
        """Nothing: the caller goes on."""
