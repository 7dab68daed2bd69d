"""A transformers model in memory: evict from its cache and answer, several policies from one prefill.

    answers = kvbench.generate(model, "A long text ...", tokenizer, policy=["full", "snapkv"], budget=0.1)

Settings have the names and values of the command line; a list stands for several values, `**{"policy.window": 32}` sets
what has a dot. In a list, what cannot be done is a `Failure` in its place, and the others are not lost. Afterwards the
model is as it was.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from kvbench.config.cells import CellBuilder
from kvbench.config.compose import combinations
from kvbench.config.overrides import parse
from kvbench.eviction.evict import Eviction
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from kvbench.models import bridge
from kvbench.models.decode.decoding import decoding_of
from kvbench.models.decode.holder import Held
from kvbench.models.engine import Engine
from kvbench.models.loading.architecture import check_architecture, text_config
from kvbench.models.loading.load import LoadedModel, end_tokens
from kvbench.models.prompts.prompt import Prompt
from kvbench.models.prompts.tokens import plain
from kvbench.models.rope import length_rope
from kvbench.notebook.words import lists_several, words_of
from kvbench.records import KeptSets
from kvbench.run.cell import Cell
from kvbench.run.decode_batch import batch_of, batches
from kvbench.run.evict_cell import HeldCache, SharedPrefill, evict_cell
from kvbench.run.memory import bytes_of_token
from kvbench.run.prefill_job import BROKEN, prefill
from kvbench.run.rows import TimedPrefill
from kvbench.support.errors import Fault, UserError
from kvbench.support.grouped import grouped
from kvbench.support.plugins import held_groups

T = TypeVar("T")
Named = str | T | Sequence[str | T]
"""What has a name on the command line: its name, an object, or a list of them."""
Ids = str | Sequence[int] | Tensor | Mapping[str, Any]
"""A prompt: text, token ids, or what a tokenizer returns."""
ROOTS = ("policy", "score", *held_groups(), "budget", "schedule", "seed")
"""The settings that say how a cache is evicted from and read."""


@dataclass(frozen=True, repr=False)
class Failure:
    """Why a combination of a list has no result, such as a budget below the protected tokens.

    policy, score, budget: as in the columns of rows.
    """

    policy: str
    score: str | None
    budget: str
    error: str

    def __repr__(self) -> str:
        return f"{_named(self)}: {self.error}"


@dataclass(frozen=True, repr=False)
class Evicted:
    """The cache of a prompt after an eviction.

    policy, score, budget: as in the columns of rows. kept: the kept positions of each layer and head (`kept.lengths`,
    `kept.positions(layer, head)`). kept_fraction: of the KV pairs. cache: the smaller cache itself.
    """

    policy: str
    score: str | None
    budget: str
    kept: KeptSets
    kept_fraction: float
    cache_bytes: int
    cache: Held

    def __repr__(self) -> str:
        return f"{_named(self)}, kept {self.kept_fraction:.1%}"


@dataclass(frozen=True, repr=False)
class Answer(Evicted):
    """The answer after an eviction. ids: its tokens, the stop token included; text: None without a tokenizer."""

    ids: list[int]
    text: str | None

    def __repr__(self) -> str:
        return f"{super().__repr__()}: {self.ids if self.text is None else self.text!r}"


def evict(
    model: Any,
    ids: Ids,
    tokenizer: Any = None,
    *,
    policy: "Named[Policy | Eviction]" = "snapkv",
    score: "Named[Score] | None" = None,
    budget: Any = 0.1,
    **settings: Any,
) -> Any:
    """Read a prompt once and evict: an `Evicted`, or a list of them if a setting lists values, with a `Failure` for
    each combination that cannot be.

    Raises UserError for a setting that is not allowed, a model in training mode, one that cannot be read, and where
    nothing can be evicted.
    """
    cells, several = _cells(model, policy=policy, score=score, budget=budget, **settings)
    prompt, results = _prompt(ids, None, tokenizer), _refused(cells)
    with _attached(model, tokenizer, len(cells)) as loaded:
        for _, caches in _evicted_caches(loaded, prompt, [cell for cell in cells if cell not in results]):
            results |= {
                cell: cache if isinstance(cache, Failure) else _evicted(cache) for cell, cache in caches.items()
            }
    return _listed(results, cells, several)


def generate(
    model: Any,
    ids: Ids,
    tokenizer: Any = None,
    *,
    question: Ids | None = None,
    max_new_tokens: int = 64,
    policy: "Named[Policy | Eviction]" = "snapkv",
    score: "Named[Score] | None" = None,
    budget: Any = 0.1,
    **settings: Any,
) -> Any:
    """Evict as `evict` does and answer greedily: an `Answer`, or a list as `evict` returns.

    question: read after the eviction, which then does not depend on it. Raises UserError as `evict` does, and for a
    prompt and answer that are longer than the model reads.
    """
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens={max_new_tokens}: allowed: 1 or more")
    cells, several = _cells(model, policy=policy, score=score, budget=budget, **settings)
    prompt, results = _prompt(ids, question, tokenizer), _refused(cells)
    question_ids = torch.tensor(prompt.question) if prompt.question else None
    with _attached(model, tokenizer, len(cells)) as loaded:
        engine, tokens = loaded.engine, prompt.tokens + max_new_tokens
        if tokens > loaded.max_length:
            raise UserError(f"prompt and answer have {tokens} tokens, but the model reads at most {loaded.max_length}")
        engine.check_length(len(prompt.prefill), len(prompt.question) + max_new_tokens - 1)
        for timed, caches in _evicted_caches(loaded, prompt, [cell for cell in cells if cell not in results]):
            results |= {cell: cache for cell, cache in caches.items() if isinstance(cache, Failure)}
            able = {cell: cache for cell, cache in caches.items() if isinstance(cache, HeldCache)}
            if not able:
                continue
            evicted = {cell: _evicted(cache) for cell, cache in able.items()}
            batch = batch_of(engine, list(able.values()), len(prompt.question) + max_new_tokens, len(prompt.question))
            del able, caches  # a cache is freed as soon as the batch has its copy
            generations = engine.generate(timed.prefilled, batch, loaded.stop, question=question_ids)
            for index, (cell, answer) in enumerate(zip(evicted, generations, strict=True)):
                error = BROKEN.format(len(answer.ids)) if answer.broken else batch.failures.get(index)
                if error is not None:
                    results[cell] = _failure(cell, error)
                    continue
                text = None if tokenizer is None else tokenizer.decode(answer.ids, skip_special_tokens=True)
                results[cell] = Answer(**vars(evicted[cell]), ids=list(answer.ids), text=text)
    return _listed(results, cells, several)


def plot_kept(evicted: Evicted | Sequence[Evicted]) -> Any:
    """Return which positions were kept in each head: a matplotlib figure with a panel for each policy."""
    from kvbench.report.plots.canvas import styled, titles
    from kvbench.report.plots.kept_sets import KeptPanel, kept_figure

    cells = [evicted] if isinstance(evicted, Evicted) else list(evicted)
    common, names = titles([{"policy": cell.policy, "score": cell.score, "budget": cell.budget} for cell in cells])
    heading = f"{common}\nKV pairs kept" if common else "KV pairs kept"
    with styled():
        return kept_figure([KeptPanel(name, (cell.kept,)) for name, cell in zip(names, cells, strict=True)], heading)


def _cells(model: Any, **settings: Any) -> tuple[list[Cell], bool]:
    """Return the distinct cells that settings ask for, and whether they list several values."""
    overrides = parse(words_of(settings))
    for override in overrides:
        if override.root not in ROOTS:
            raise UserError(f"{override.text}: not for a model in memory; allowed: settings of {', '.join(ROOTS)}")
    built = CellBuilder(lambda spec, layout: bytes_of_token(model.config, model.dtype, layout))
    cells = list({repr(cell): cell for cell in map(built.cell, combinations(overrides))}.values())
    return cells, len(cells) > 1 or lists_several(settings)


def _refused(cells: Sequence[Cell]) -> dict[Cell, Any]:
    """Return the failures of cells that no prompt can be evicted for. Raises UserError if that is all of them."""
    failures = {cell: error for cell in cells if (error := _error(cell)) is not None}
    if len(failures) == len(cells):
        raise failures[cells[0]]
    return {cell: _failure(cell, str(error)) for cell, error in failures.items()}


def _error(cell: Cell) -> ValueError | None:
    try:
        cell.check()
    except ValueError as error:
        return error
    return None


def _failure(cell: Cell, error: str) -> Failure:
    return Failure(cell.eviction.policy_label, cell.eviction.score_label, str(cell.budget), error)


def _listed(results: Mapping[Cell, Any], cells: Sequence[Cell], several: bool) -> Any:
    """Return the results of the cells, or of the only one. Raises UserError if nothing but failures is left."""
    failures = [results[cell] for cell in cells if isinstance(results[cell], Failure)]
    if len(failures) == len(cells):
        raise UserError(f"{failures[0].policy}: {failures[0].error}")
    return [results[cell] for cell in cells] if several else results[cells[0]]


def _named(result: Failure | Evicted) -> str:
    score = "" if result.score is None else f" {result.score}"
    return f"{result.policy}{score}, budget {result.budget}"


@contextmanager
def _attached(model: Any, tokenizer: Any, cells: int) -> Iterator[LoadedModel]:
    """Yield the model on kvbench's caches; afterwards it has its own attention again."""
    check_architecture(model.config, type(model).__name__)
    if model.training:
        raise UserError("the model is in training mode, where dropout changes answers: call model.eval() first")
    longest = text_config(model.config).max_position_embeddings
    stop = end_tokens(model, type(model).__name__)
    with bridge.attached(model):
        engine = Engine(
            model, max_batch=min(cells, Engine.max_batch), max_length=longest, rope=length_rope(model.config)
        )
        engine.decoding = decoding_of(engine)
        yield LoadedModel(engine, tokenizer, stop, longest, {})


def _evicted_caches(
    model: LoadedModel, prompt: Prompt, cells: Sequence[Cell]
) -> Iterator[tuple[TimedPrefill, dict[Cell, HeldCache | Failure]]]:
    """Yield the evicted caches of cells that can decode together, with their prefill, which all share that can."""

    def reading(cell: Cell) -> str:
        at_once = cell.score.inputs.hidden_states == "prompt"
        return repr(cell) if cell.schedule.prefill_block is not None else str(at_once)

    def evicted(cell: Cell, shared: SharedPrefill) -> HeldCache | Failure:
        try:
            return evict_cell(model, cell, shared)
        except ValueError as error:
            if isinstance(error, Fault) and error.spoils:
                raise
            return _failure(cell, str(error))

    for alike in grouped(cells, reading).values():
        timed = prefill(model, {0: prompt}, alike)
        shared = SharedPrefill(timed.prefilled.cache, prompt, alike, summed=timed.prefilled.seconds)
        for together in batches([(cell, 0) for cell in alike], model.engine.max_batch):
            yield timed, {cell: evicted(cell, shared) for cell, _ in together}


def _evicted(held: HeldCache) -> Evicted:
    result = held.result
    cell, tokens = result.cell, held.cache.num_tokens
    return Evicted(
        policy=cell.eviction.policy_label,
        score=cell.eviction.score_label,
        budget=str(cell.budget),
        kept=KeptSets("in memory", 0, tokens, result.layers, result.lengths, result.masks),
        kept_fraction=1.0 if result.kept_tokens is None else result.kept_tokens / tokens,
        cache_bytes=result.cache_bytes,
        cache=held.cache,
    )


def _prompt(ids: Ids, question: Ids | None, tokenizer: Any) -> Prompt:
    if isinstance(ids, str) and tokenizer is not None:
        ids = tokenizer(ids).input_ids
    if isinstance(question, str) and tokenizer is not None:
        question = plain(tokenizer, question)
    return Prompt(_ids(ids), () if question is None else _ids(question), "")


def _ids(ids: Ids) -> tuple[int, ...]:
    """Token ids of one sequence, with or without a batch axis of 1."""
    if isinstance(ids, str):
        raise UserError("a text needs a tokenizer: generate(model, text, tokenizer), or give token ids")
    if isinstance(ids, Mapping) and (
        images := [name for name in ids if name.startswith(("pixel_", "image_", "video_"))]
    ):
        raise UserError(f"the prompt holds {images[0]}: images are not read; give the text alone")
    if isinstance(ids, (list, tuple)) and ids and isinstance(ids[0], Mapping):
        raise UserError(
            "messages are no ids: give tokenizer.apply_chat_template(messages, ...) of texts without images"
        )
    tensor = torch.as_tensor(ids["input_ids"] if isinstance(ids, Mapping) else ids)
    flat = tensor[0] if tensor.ndim == 2 and len(tensor) == 1 else tensor
    if flat.ndim != 1 or flat.is_floating_point() or not len(flat):
        raise UserError(
            f"ids have shape {list(tensor.shape)}: allowed: one sequence of token ids, [tokens] or [1, tokens]"
        )
    return tuple(flat.tolist())
