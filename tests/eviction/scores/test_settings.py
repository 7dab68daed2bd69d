"""Settings that a score cannot have."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from kvbench.eviction.scores.attn import Cake
from kvbench.eviction.scores.head_table import HeadTable
from kvbench.eviction.scores.host import Caote, CriticalKV
from kvbench.eviction.scores.keys import LagKV
from kvbench.eviction.scores.kvzip import KVzip, KVzipPlus
from kvbench.eviction.scores.score import Score, ScoreInputs
from kvbench.support.errors import UserError
from tests.arrays import random_layer


@dataclass(frozen=True)
class OfHiddenStates(Score):
    """A score that forgot to say what it makes of hidden states."""

    name: str = "gate"
    inputs: ClassVar[ScoreInputs] = ScoreInputs(hidden_states="block")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cake(gamma=-1), r"score\.gamma=-1: allowed: 0 or more"),
        (lambda: KVzip(chunk=0), r"score\.chunk=0: allowed: 1 or more"),
        (lambda: KVzipPlus(softmax=False), "kvzip_plus weighs attention weights, not logits: use score=kvzip_logit"),
        (lambda: KVzipPlus(zscore=True), "kvzip_plus weighs attention weights, not logits: use score=kvzip_logit"),
        (lambda: LagKV(lag=1), r"score\.lag=1: a partition has at least 2 tokens"),
        (lambda: CriticalKV(first_stage=1.5), r"score\.first_stage=1\.5: a part of the pairs is from 0 to 1"),
        (lambda: Caote(OfHiddenStates()), r"score\.host=gate is made of hidden states, which only the score itself"),
    ],
)
def test_what_a_score_cannot_be_is_refused(make: Callable[[], Score], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_a_score_that_asks_for_hidden_states_must_read_them() -> None:
    layer = random_layer(9)
    with pytest.raises(UserError, match="score gate asks for hidden states: its class must define read_hidden"):
        OfHiddenStates().read_hidden(layer, layer.keys)


def test_a_head_table_is_text(tmp_path: Path) -> None:
    (tmp_path / "heads.tsv").write_bytes(b"0.5\t\xff\n")
    with pytest.raises(UserError, match=r"score\.path=.*heads\.tsv is not text"):
        HeadTable(path=str(tmp_path / "heads.tsv"))
