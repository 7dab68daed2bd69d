"""Telling a model to repeat what it read: what it is told, and that its record is what attention really did."""

import pytest
import torch
from torch import Tensor

from kvbench.cache.attention import AttentionParams
from kvbench.eviction.scores.kvzip import CONTINUE, REPEAT, KVzip
from kvbench.eviction.scores.score import ContextRepetition
from kvbench.models import bridge
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.repeat import RepeatPass, passes
from tests.models.conftest import PROMPT, make_engine
from tests.models.masked import MaskedReader


class Words:
    """A tokenizer of one number a word."""

    bos_token = None
    bos_token_id = None

    def __call__(self, text: str, add_special_tokens: bool = True) -> "Words":
        self.input_ids = [len(word) for word in text.split()]
        return self


class Spy(MaskedReader):
    """Attention over everything, and what it was asked with."""

    def __init__(self, layers: int) -> None:
        super().__init__(0, [None] * layers)
        self.queries: dict[int, Tensor] = {}
        self.keys: dict[int, Tensor] = {}

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, rule: AttentionParams) -> Tensor:
        self.queries[layer], self.keys[layer] = queries[0], keys[0]
        return super().attend(layer, queries, keys, values, rule)


@pytest.mark.parametrize("by_norm", [False, True])
def test_a_record_is_what_the_rows_of_a_pass_give_to_its_chunk(by_norm: bool) -> None:
    """Rows stand behind the whole prompt and attend to it; the record spreads their weight over head, chunk, pass."""
    engine = make_engine(torch.float64)
    repeat = ContextRepetition(25, 8, REPEAT, CONTINUE, softmax=True, by_norm=by_norm)
    read = engine.prefill(PROMPT).cache
    before = [layer.keys.clone() for layer in read.layers]
    repeat_passes = [
        RepeatPass(3, start, min(start + 25, 61), tuple(range(5, 12)) + tuple(PROMPT[start : start + 25].tolist()))
        for start in (3, 28, 53)
    ]
    cache = engine.repeat(read, repeat_passes, repeat)
    for repeat_pass in repeat_passes:
        spy, hidden = Spy(len(cache.layers)), dict[int, Tensor]()
        with bridge.attention_calls(
            engine.model, lambda call, read=hidden: read.update({call.module.layer_idx: call.hidden})
        ):
            bridge.forward(engine.model, torch.cat((PROMPT, torch.tensor(repeat_pass.ids)))[None], 0, spy)
        columns = [*range(3), *range(repeat_pass.start, repeat_pass.stop), *range(61, 61 + len(repeat_pass.ids))]
        for layer in cache.layers:
            queries, keys = spy.queries[layer.index][:, 61:], spy.keys[layer.index][:, columns]
            logits = queries @ keys.repeat_interleave(3, 0).mT * 8**-0.5
            ahead = torch.tensor(columns) > torch.arange(61, 61 + len(repeat_pass.ids))[:, None]
            chunk = slice(3, 3 + repeat_pass.stop - repeat_pass.start)
            weights = logits.masked_fill(ahead, -torch.inf).softmax(-1)[..., chunk]
            if by_norm:
                weights = weights / hidden[layer.index][0, 61:].norm(dim=-1)[:, None]
            record = layer.recordings[repeat][:, repeat_pass.start : repeat_pass.stop]
            assert torch.allclose(record.double(), weights.amax(dim=1), rtol=1e-5)
    assert all((layer.recordings[repeat][:, :3] == 0).all() for layer in cache.layers)
    assert engine.counters.tokens_repeated == 3 * 7 + 58 and engine.counters.prefills == 1
    assert all(torch.equal(was, layer.keys) for was, layer in zip(before, read.layers, strict=True))
    assert not read.layers[0].recordings


def before_chunk(repeat_pass: RepeatPass) -> tuple[int, ...]:
    return repeat_pass.ids[: repeat_pass.start - repeat_pass.stop]


def test_passes_are_those_of_the_published_code() -> None:
    """Instruction, turn, chunk; a later instruction ends with the last eight tokens of the chunk before."""
    read = tuple(range(100, 147))
    prompt = Prompt(read, (), "", prefix_tokens=6, turn=(1, 2, 3))
    repeat = KVzip(chunk=20).inputs.repeat
    assert repeat is not None
    first = (6, 3, 8, 7, 8)
    then = (6, 3, 4, 2, 3, 8, 7, 8, 8, 4)
    assert list(passes(Words(), prompt, repeat)) == [
        RepeatPass(6, 6, 26, (*first, 1, 2, 3, *range(106, 126))),
        RepeatPass(6, 26, 46, (*then, *range(118, 126), 1, 2, 3, *range(126, 146))),
        RepeatPass(6, 46, 47, (*then, *range(138, 146), 1, 2, 3, 146)),
    ]
    words = {"repeat_prompt": "say it", "continue_prompt": "starting with", "continue_end": "so :"}
    paper = KVzip(chunk=20, turn=False, head=False, **words).inputs.repeat
    short = KVzip(chunk=3, repeat_prompt="say it again").inputs.repeat
    assert paper is not None and short is not None
    apart = list(passes(Words(), prompt, paper))
    assert [each.head for each in apart] == [0] * 3
    assert list(map(before_chunk, apart)) == [
        (3, 2),
        (8, 4, *range(118, 126), 2, 1),
        (8, 4, *range(138, 146), 2, 1),
    ]
    begun = passes(Words(), Prompt(read[:12], (), "", prefix_tokens=4), short)
    assert list(map(before_chunk, begun)) == [(3, 2, 5), (*then, 104, 105, 106), (*then, 107, 108, 109)]
