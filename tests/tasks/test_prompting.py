"""Settings that every task has."""

import pytest

from kvbench.tasks.prompting import Prompting


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ("\n", "")}, r"task\.stop lists an empty text"),
        ({"min_new_tokens": -1}, r"task\.min_new_tokens=-1: 0 or more"),
    ],
)
def test_what_no_protocol_can_mean_is_refused(fields: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Prompting(**fields)
