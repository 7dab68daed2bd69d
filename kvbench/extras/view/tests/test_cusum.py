"""A CUSUM adds up what lasts and forgets what ended."""

from kvbench.extras.view.cusum import is_alarm, next_sum


def test_losses_that_last_add_up_and_end() -> None:
    def alarms(losses: list[float], effect: float = 0.2) -> list[bool]:
        total, listed = 0.0, []
        for loss in losses:
            total = next_sum(total, loss, effect)
            listed.append(is_alarm(total))
        return listed

    assert alarms([0.2, 0.2]) == [False, True]
    assert alarms([0.14] * 6) == [False] * 4 + [True] * 2
    assert not any(alarms([0.1] * 100)) and not any(alarms([0.19, 0.0] * 50))
    assert alarms([1.0] * 9 + [0.0]) == [True] * 9 + [False], "one run without the loss ends it"
