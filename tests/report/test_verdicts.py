"""The attacks of benchmarks/verdict_attacks.py, each with the verdict that it must get."""

from pathlib import Path

import pytest

from benchmarks.verdict_attacks import FAILED, Attack, attacks, outcome


@pytest.mark.parametrize("attack", [*attacks()], ids=lambda attack: attack.name)
def test_an_attack_gets_its_verdict(attack: Attack, tmp_path: Path) -> None:
    got = outcome(attack, tmp_path)
    assert (got.verdict, got.code) == (attack.verdict, attack.code)
    assert (got.failures > 0) is (attack.verdict == FAILED)
