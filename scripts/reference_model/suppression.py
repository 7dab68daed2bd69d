"""A layer that begins as copy suppression: it lowers the probability of values that an answer has already named.

Answers of several values need it, and training alone did not find it in 35 million tokens. Linear probes of the states
before the layer tell where a value of an answer begins and where the next one is due; queries and keys of the layer's
first heads are these probes, and its values and outputs carry the token's embedding, negated. Such heads are known from
larger models (McDougall et al., Copy Suppression, arXiv 2310.04625).
"""

import random
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from .families import Families
from .network import Layer, Norm, TrainingLlama
from .rows import Batch, collate

KINDS = (
    *("values/essay", "values/needle", "values/noise", "tracking", "frequent", "common"),
    *("queries/essay", "single/needle", "single/essay"),
)
BATCHES, ROWS, TOKENS = 5, 16, 512
MARKED = 30.0
"""Weight of a token that a probe is to find; others weigh 1."""
RIDGE, IDENTITY_RIDGE = 30.0, 5.0
SHARPNESS = 160.0
"""Product of query and key where both probes say 1, before the division by sqrt(head_dim)."""
PAIRS = {14: 0.1, 15: 0.1, 30: 0.5, 31: 0.3}
"""Shares of the rotary pairs that carry the probes: slow pairs see any distance, faster ones prefer what is near."""
VALUE = 8.0
"""Scale of the matrix that reads the embedding; that of the matrix which writes it is as much smaller."""
TAKEN = 0.24
"""Size of what is taken away where one value is named, as a share of the state it is taken from."""


@dataclass(frozen=True)
class Probes:
    """Linear maps of normed states [hidden].

    due [hidden]: 1 where the next token begins one of several values of an answer. named [hidden]: 1 at the first token
    of such a value. embedding [hidden, hidden]: to the embedding of that token. ratio: size of a state where a value is
    due over that of an embedding.
    """

    due: Tensor
    named: Tensor
    embedding: Tensor
    ratio: float


@torch.no_grad()
def suppress(model: TrainingLlama, place: int, families: Families) -> None:
    """Let the layer at `place` begin as copy suppression; so far it must change nothing, as `start_from` leaves it.

    Raises:
        ValueError: the layer's KV heads are too few to carry a state.
    """
    shape, layer = model.shape, model.model.layers[place]
    heads, group = -(-shape.hidden // shape.head_dim), shape.query_heads // shape.kv_heads
    if heads > shape.kv_heads:
        raise ValueError(f"copy suppression needs {heads} KV heads of {shape.head_dim}, the model has {shape.kv_heads}")
    assert isinstance(layer, Layer)
    probes, attention = probe(model, place, families), layer.self_attn
    for head in range(heads):
        part = slice(head * shape.head_dim, min(shape.hidden, (head + 1) * shape.head_dim))
        size, keys = part.stop - part.start, head * shape.head_dim
        queries = keys * group
        attention.q_proj.weight[queries : queries + shape.head_dim] = 0
        attention.k_proj.weight[keys : keys + shape.head_dim] = 0
        for pair, share in PAIRS.items():
            pair = pair * shape.head_dim // 64
            attention.q_proj.weight[queries + pair] = (SHARPNESS * share) ** 0.5 * probes.due
            attention.k_proj.weight[keys + pair] = (SHARPNESS * share) ** 0.5 * probes.named
        attention.v_proj.weight[keys : keys + size] = VALUE * probes.embedding.T[part]
        attention.o_proj.weight[part, queries : queries + size] = -TAKEN * probes.ratio / VALUE * torch.eye(size)


@torch.no_grad()
def probe(model: TrainingLlama, place: int, families: Families) -> Probes:
    """Fit the probes of the states before a layer by ridge regression on training rows."""
    hidden, norm = model.shape.hidden, Norm(model.shape.hidden)
    embeddings = model.model.embed_tokens.weight.float()
    products, due_sum, named_sum = torch.zeros(hidden, hidden), torch.zeros(hidden), torch.zeros(hidden)
    named_products, embedded = torch.zeros(hidden, hidden), torch.zeros(hidden, hidden)
    ratios: list[float] = []
    for number in range(BATCHES):
        for kind in KINDS:
            rng = random.Random(f"probes {number} {kind}")
            batch = collate([families.row(rng, kind, TOKENS) for _ in range(ROWS)], TOKENS)
            real, due, named = marks(batch)
            states, ids = states_before(model, place, batch)[real], torch.from_numpy(batch.ids)[real]
            due, named = due[real].float(), named[real].float()
            if named.any():
                sizes = states[due > 0].norm(dim=1).mean() / embeddings[ids[named > 0]].norm(dim=1).mean()
                ratios.append(float(sizes))
            states = norm(states).float()
            weighted = states * (1 + MARKED * (due + named))[:, None]
            products += weighted.T @ states
            due_sum += weighted.T @ due
            named_sum += weighted.T @ named
            firsts = states[named > 0]
            named_products += firsts.T @ firsts
            embedded += firsts.T @ embeddings[ids[named > 0]]
    unit = torch.eye(hidden)
    due_at, named_at = (torch.linalg.solve(products + RIDGE * unit, total) for total in (due_sum, named_sum))
    embedding = torch.linalg.solve(named_products + IDENTITY_RIDGE * unit, embedded)
    return Probes(due_at, named_at, embedding, fmean(ratios))


def marks(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Masks [rows, tokens]: tokens of rows; those before a value of an answer of several; first tokens of such."""
    real, due, named = (torch.zeros(batch.ids.shape, dtype=torch.bool) for _ in range(3))
    for index, row in enumerate(batch.rows):
        real[index, : len(row.ids)] = True
        for begin, end in row.answers:
            firsts = [first for first, _ in row.values if begin <= first < end]
            if len(firsts) > 1:
                named[index, firsts] = True
                due[index, [first - 1 for first in firsts]] = True
    return real, due, named


def states_before(model: TrainingLlama, place: int, batch: Batch) -> Tensor:
    """States [rows, tokens, hidden] before a layer."""
    caught: list[Tensor] = []
    layer = model.model.layers[place]
    handle = layer.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0].float()))
    model(*(torch.from_numpy(array) for array in (batch.ids, batch.positions, batch.hidden, batch.blind_from)))
    handle.remove()
    return caught[0]
