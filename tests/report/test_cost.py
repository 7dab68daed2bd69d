"""What rows cost: cells that share a prefill pay for it once, and all tasks have a sum."""

import pytest

from kvbench.report.formats.emit import emitted
from kvbench.report.tables.cost import costs, report_of


def test_a_prefill_is_paid_once_and_tasks_add_up(cell, results) -> None:
    sizes = {"prompt_tokens": 100, "new_tokens": 8, "context_sha256": "a" * 64}
    shared = {"prefill_seconds": 90.0, "evict_seconds": 20.0, "decode_seconds": 400.0} | sizes
    folder = results(
        cell([1.0], **shared),
        cell([0.0], "h2o", **shared),
        cell(["too long"], "tova"),
        cell([1.0], task="ruler/vt", **shared | {"prefill_seconds": 60.0, "decode_seconds": 14000.0}),
    )
    first, second = costs(folder, pytest.fail)
    assert (first.rows, first.failed, first.prefills, first.prefill_tokens, first.new_tokens) == (3, 1, 1, 100, 16)
    assert (first.prefill_seconds, first.evict_seconds, first.decode_seconds) == (90, 40, 800)
    assert first.seconds == 930 and second.seconds == 60 + 20 + 14000
    lines = emitted(report_of(folder, pytest.fail), "text").splitlines()
    (total,) = (line.split() for line in lines if line.startswith("all"))
    assert total == ["all", "4", "1", "2", "200", "24", "2.5", "min", "60", "s", "4.11", "h"]
    (one,) = (line.split() for line in lines if "niah" in line)
    assert one[-6:] == ["90", "s", "40", "s", "13.3", "min"]
    alone = emitted(report_of(folder, pytest.fail, {"task": ["ruler/vt"]}), "text")
    assert not any(line.startswith("all") for line in alone.splitlines()), "one line is its own sum"
