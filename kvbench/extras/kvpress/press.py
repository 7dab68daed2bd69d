"""Scores of kvpress, and of whoever publishes a method as a press of it: `score` of the press, without its hooks.

A press gets what kvpress documents: the attention module, the hidden states that it reads, keys after RoPE, values and
the rotary tables. kvpress is imported only when a press is built, and nothing of transformers stays as it wraps it.
"""

import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, get_type_hints
from weakref import WeakKeyDictionary

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from kvbench.cache.kv_cache import LayerCache, ObservationWindow
from kvbench.cache.shapes import Scores
from kvbench.eviction.budget import Budget, FractionBudget, parse_budget
from kvbench.eviction.scores.score import AttentionCall, Reduce, Score, ScoreInputs
from kvbench.support.annotations import Help
from kvbench.support.errors import MissingFile, UserError
from kvbench.support.facts import SIZED_BUDGET, Claim
from kvbench.support.plugins import plugin_packages
from kvbench.support.text import closest

INSTALL = "pip install 'kvbench[kvpress]' and then pip install --no-deps kvpress==0.5.5"
CACHE_ONLY = ("KnormPress", "KeyDiffPress", "RandomPress", "CURPress", "LagKVPress")
"""Presses that read keys and values alone."""
EVERY_BUDGET = (
    *CACHE_ONLY,
    *("QFilterPress", "ExpectedAttentionPress", "ExpectedAttentionStatsPress", "CapPress", "LeverageScorePress"),
    *("KVzapPress", "SnapKVPress", "TOVAPress", "PyramidKVPress", "FinchPress", "NonCausalAttnPress"),
)
"""Presses whose scores do not depend on `compression_ratio`, so that one ranking serves all budgets."""
COUNTING = ("StreamingLLMPress", "CriticalKVPress")
"""Presses that count pairs by `compression_ratio`; to all others it is a number in a formula."""
LATE = {"FinchPress": {"window_size": int}}
"""Fields that no constructor takes: kvpress sets them in hooks of its own."""
REFUSED: dict[str, str] = json.loads(Path(__file__).with_name("refused.json").read_text("utf-8"))
"""Presses that are no score, with the reason and what does the same here."""

_loaded: WeakKeyDictionary[Any, dict["Press", Any]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Press(Score):
    """The scores of a press, one row per KV head, built and seeded anew for every layer.

    press: a class of kvpress with a method `score`, or package.module.Class of a plugin. args: its arguments; a press
    in them is its name, or {press: NAME, args: {...}}. reads: `cache`, keys and values alone, which are read after the
    prefill; `prompt`, hidden states and the module too, layer by layer in one pass over the prompt; null: `cache` where
    a press of kvpress reads no more. seed: of the random numbers that a press draws. budget: of the cell, if scores
    depend on it.

    Raises UserError for an unknown press, one that is no score, and arguments that it refuses; MissingFile if kvpress
    is not installed.
    """

    only_if_stated: ClassVar[tuple[str, ...]] = ("budget",)
    press: Annotated[str, Help("its class in kvpress, or package.module.Class of a plugin", example="LagKVPress")]
    args: Annotated[dict[str, Any], Help("its arguments: score.args.n_sink=4")] = field(
        default_factory=dict, hash=False
    )
    reads: Annotated[
        Literal["cache", "prompt"] | None,
        Help("cache: keys and values alone; prompt: hidden states and the attention module too, in one pass"),
    ] = None
    seed: Annotated[int, Help("of the random numbers that a press draws")] = 0
    budget: str | None = None
    name: str = "kvpress"
    signed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._build()

    @property
    def inputs(self) -> ScoreInputs:
        if self.reads == "cache" or (self.reads is None and self.press in CACHE_ONLY):
            return ScoreInputs()
        return ScoreInputs(hidden_states="prompt", module=True)

    @property
    def runs(self) -> tuple[Any, ...]:
        """The press and one in it: their code is part of the description of a cell."""
        press = self._build()
        return (press, inner) if (inner := getattr(press, "press", None)) is not None else (press,)

    def claims(self) -> Iterator[Claim]:
        yield from super().claims()
        if self.budget is not None:
            yield Claim(f"score.press={self.press}", "another press", {SIZED_BUDGET: "reads how much is kept"})

    def of_budget(self, budget: Budget) -> Score:
        return self if self.press in EVERY_BUDGET else replace(self, budget=str(budget))

    def read_call(self, layer: LayerCache, call: AttentionCall) -> Scores:
        return self._score(layer, call)

    def __call__(self, layer: LayerCache, window: ObservationWindow | None, reduce: Reduce) -> Scores:
        return layer.recordings[self] if self.inputs.hidden_states else self._score(layer, None)

    def _score(self, layer: LayerCache, call: AttentionCall | None) -> Scores:
        """Return the scores of the press for copies of its inputs. Raises UserError for what is no score."""
        keys, values = (part[None] for part in layer.dense)
        inputs = {"keys": keys, "values": values} | ({"hidden states": call.hidden} if call else {})
        copies = {name: part.clone() for name, part in inputs.items()}
        arrays = (copies.get("hidden states"), copies["keys"], copies["values"], None)
        named_arguments = {name: value for name, value in call.named.items() if name != "hidden_states"} if call else {}
        where, tokens = f"{self.press} in layer {layer.index}", keys.shape[2]
        devices = [keys.device] if keys.device.type == "cuda" else []
        try:
            press = self._of_model(call.model) if call and call.model else self._build()
            if self.budget is not None:
                press.compression_ratio = self._ratio(parse_budget(self.budget), tokens)
            with torch.random.fork_rng(devices), _module(layer, call) as module:
                torch.manual_seed(self.seed + layer.index)
                scores = press.score(module, *arrays, named_arguments)
        except UserError:
            raise
        except Exception as error:  # code of others may raise anything
            if isinstance(error, RuntimeError) and "memory" in str(error):
                raise
            raise UserError(f"{where} fails: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        for name, part in inputs.items():
            if not torch.allclose(part, copies[name], rtol=0, atol=0, equal_nan=True):
                raise UserError(f"{where} changes its {name}: a press returns scores and leaves its inputs as they are")
        shape = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        if shape != list(keys.shape[:3]):
            raise UserError(f"{where} returns {shape}, allowed: [1, KV heads, tokens], here {list(keys.shape[:3])}")
        if not scores.isfinite().all() and all(layer.finite):  # otherwise the cache is to blame
            raise UserError(f"{where} returns NaN or inf, allowed: finite numbers, the highest for the best pairs")
        return scores[0].float()

    def _ratio(self, budget: Budget, tokens: int) -> float:
        """Return the `compression_ratio` of a budget; for a press that counts, half a pair from where it rounds."""
        if self.press in COUNTING:
            return max(0.0, 1 - (budget.of(tokens) + 0.5) / tokens)
        share = budget.share if isinstance(budget, FractionBudget) else Decimal(budget.of(tokens)) / tokens
        return max(0.0, float(1 - share))

    def _of_model(self, model: Any) -> Any:
        """Return the press with what it loads for a model, once per model."""
        presses = _loaded.setdefault(model, {})
        if self not in presses:
            press = self._build()
            getattr(press, "post_init_from_model", lambda model: None)(model)
            presses[self] = press
        return presses[self]

    def _build(self) -> Any:
        return _built("score", {"press": self.press, "args": self.args})


def _built(setting: str, node: Any) -> Any:
    """Return an instance of the press of a node {press, args}, or of a name."""
    node = {"press": node} if isinstance(node, str) else node
    if not isinstance(node, dict) or not {"press"} <= set(node) <= {"press", "args"}:
        raise UserError(f"{setting}={node}: allowed: the name of a press, or {{press:NAME,args:{{...}}}}")
    name, args = str(node["press"]), dict(node.get("args") or {})
    kind = _class_of(f"{setting}.press", name)
    allowed = [parameter for parameter in inspect.signature(kind).parameters if parameter != "compression_ratio"]
    late = LATE.get(name, {})
    hints = {**get_type_hints(kind), **get_type_hints(kind.__init__), **late}
    for key, value in args.items():
        written = f"{setting}.args.{key}={value}"
        if key == "compression_ratio":
            raise UserError(f"{written}: it is the budget that says how much is kept: budget={1 - float(value):g}")
        if key not in (*allowed, *late):
            raise UserError(f"{written}: unknown argument of {name}: {closest(key, [*allowed, *late])}")
        try:
            is_press = key == "press"
            args[key] = _built(f"{setting}.args.press", value) if is_press else _adapter(hints[key])(value)
        except ValidationError as error:
            problem = error.errors()[0]["msg"].replace("Input should be", "allowed:")
            raise UserError(f"{written}: {problem} (argument of {name})") from None
    if missing := [key for key in late if key not in args]:
        raise UserError(f"{setting}.press={name} needs {setting}.args.{missing[0]}=16, or another number")
    try:
        press = kind(**{key: value for key, value in args.items() if key not in late})
    except Exception as error:  # code of others may raise anything
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(f"{setting}.press={name} refuses {setting}.args={node.get('args') or {}}: {problem}") from None
    for key in late:
        setattr(press, key, args[key])
    return press


def _adapter(hint: Any) -> Any:
    return TypeAdapter(hint, config={"arbitrary_types_allowed": True}).validate_python


def _class_of(setting: str, name: str) -> Any:
    """Return the class of a press. Raises UserError for one that is unknown or no score."""
    if name in REFUSED:
        raise UserError(f"{setting}={name} is no score: {REFUSED[name]}")
    package, _, attribute = name.rpartition(".")
    allowed, outer = ["kvpress", *plugin_packages()], package.partition(".")[0]
    if "." in name and outer not in allowed and package not in sys.modules:
        raise UserError(
            f"{setting}={name}: {outer or 'no package'} is not installed as a plugin, and kvbench imports no other "
            f"modules by name: allowed: a class of {', '.join(allowed)} (docs/extend.md), or of a module that your "
            "own program has imported"
        )
    try:
        module = imported(package or "kvpress")
    except ImportError as error:
        if package:
            raise UserError(f"{setting}={name} does not load: {error}") from None
        raise MissingFile(f"score=kvpress needs kvpress, which does not load ({error}): {INSTALL}") from None
    kind = getattr(module, attribute, None)
    if not isinstance(kind, type) or not callable(getattr(kind, "score", None)) or attribute == "ScorerPress":
        classes = (press for press in vars(module).values() if isinstance(press, type) and hasattr(press, "score"))
        names = [press.__name__ for press in classes if press.__name__ not in (*REFUSED, "ScorerPress")]
        raise UserError(f"{setting}={name} is no press with a score: {closest(attribute, names)}")
    return kind


def imported(name: str) -> Any:
    """Return a module of presses. kvpress wraps transformers' attention functions when it is imported: they are put
    back.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    before = dict(FUNCTIONS)
    try:
        return import_module(name)
    finally:
        for key, function in before.items():
            if FUNCTIONS[key] is not function:  # an entry of its own hides the common one
                del FUNCTIONS[key]
            if FUNCTIONS.get(key) is not function:
                FUNCTIONS[key] = function


@contextmanager
def _module(layer: LayerCache, call: AttentionCall | None) -> Iterator[Any]:
    """Yield the module of a call, with the rotary embedding set on it while the block runs; a stand-in if there is
    none.
    """
    if call is None or call.model is None:
        yield SimpleNamespace(layer_idx=layer.index, head_dim=layer.keys.shape[1])
        return
    module = call.module
    if hasattr(module, "rotary_emb"):
        yield module
        return
    rotary = next((part.rotary_emb for part in call.model.modules() if hasattr(part, "rotary_emb")), None)
    if rotary is not None and "layer_type" in inspect.signature(rotary.forward).parameters:
        rotary = partial(rotary, layer_type=module.config.layer_types[module.layer_idx])
    held = set(vars(module))
    module.rotary_emb = rotary
    try:
        yield module
    finally:
        del module.rotary_emb
        for name in set(vars(module)) - held:
            delattr(module, name)
