"""The sequential test of a series of runs: Page's CUSUM of what each lost against one fixed run.

A loss that lasts and that no single run shows adds up. The sum of a run is the sum of the run before it, plus its loss,
minus half of the smallest effect that matters; never below 0. It is an alarm where it reaches that effect, and never
lies above it: one run without the loss ends the alarm. So a loss of the effect itself is an alarm after two runs, one
of 70 % of it after five, and one of half of it never.

Page, "Continuous inspection schemes", Biometrika 41 (1954) 100-115. Its false alarms are measured in
benchmarks/results/statistics.md.
"""

ALARM = 1.0
_ALLOWED = 0.5
"""Page's reference value and decision interval, both in units of the effect."""


def next_sum(sum_before: float, loss: float, effect: float) -> float:
    """Return the sum after one more run, 0 to ``ALARM``. ``loss``: above 0 where a run is worse, in the unit of
    ``effect``.
    """
    return min(ALARM, max(0.0, sum_before + loss / effect - _ALLOWED))


def is_alarm(total: float) -> bool:
    """Return whether a sum is an alarm, but for rounding."""
    return total >= ALARM * (1 - 1e-9)
