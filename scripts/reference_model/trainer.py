"""The training loop: batches by step number, Muon for matrices and AdamW for the rest, a log line now and then, a
checkpoint that survives a kill.
"""

import json
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from .curriculum import Plan, Stage
from .data import Source
from .families import Families, fits
from .network import TrainingLlama
from .rows import Batch, Row, collate, hide, skip

WARM_UP = 100
"""Steps until the learning rate is reached."""


@dataclass(frozen=True)
class Settings:
    """What a run is: its result depends on these and the plan, not on the clock."""

    seed: int = 1
    device: str = "cpu"
    compiled: bool = False
    log_seconds: float = 30.0
    save_seconds: float = 60.0


class Batches(IterableDataset):
    """The batches of a plan from one step on, each a function of seed, step and stage."""

    def __init__(self, source: Source, plan: Plan, seed: int, first: int):
        self.families, self.plan, self.seed, self.first = Families(source), plan, seed, first

    def __iter__(self) -> Iterator[Batch]:
        for step in range(self.first, self.plan.steps):
            yield self.draw(step)

    def draw(self, step: int) -> Batch:
        """The batch of a step."""
        stage, rng = self.plan.at(step)[0], random.Random(f"reference model {self.seed}/{step}")
        (tokens, count, _), *_ = rng.choices(stage.shapes, [share for _, _, share in stage.shapes])
        shares = {name: share for name, share in stage.shares.items() if fits(name, tokens)}
        names = rng.choices(list(shares), list(shares.values()), k=count)
        return collate([self._row(rng, stage, name, tokens) for name in names], tokens)

    def _row(self, rng: random.Random, stage: Stage, name: str, tokens: int) -> Row:
        row = self.families.row(rng, name, tokens)
        if rng.random() < stage.evicted and len(row.answers) == 1 and name not in ("counts", "frequent"):
            hide(rng, row, self.families.source.newline)
        if rng.random() < stage.jumps and name != "text":
            skip(rng, row, stage.furthest)
        return row


class Trainer:
    """One run in one folder.

    The state is (weights, optimisers, step); batches are functions of seed and step, so there is no RNG to save.
    """

    def __init__(self, folder: Path, settings: Settings, plan: Plan, source: Source, model: TrainingLlama):
        self.folder, self.settings, self.plan, self.source = folder, settings, plan, source
        self.model = model.to(settings.device)
        parameters = dict(model.named_parameters())
        matrices = [weight for name, weight in parameters.items() if weight.dim() == 2 and "embed" not in name]
        others = [weight for name, weight in parameters.items() if weight.dim() == 1 or "embed" in name]
        self.optimisers = (
            torch.optim.Muon(matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0),
        )
        self.step = self.tokens = 0
        self.seconds = 0.0
        self.checkpoint = folder / "checkpoint.pt"
        if self.checkpoint.exists():
            self._load()
        if settings.compiled:
            torch._dynamo.config.cache_size_limit = 64  # a graph for each shape of a plan
            for layer in model.model.layers:
                layer.compile(dynamic=False)

    def run(self, max_steps: int | None = None) -> bool:
        """Train until the plan ends or `max_steps` in total; True when everything is done."""
        last = min(self.plan.steps, max_steps or self.plan.steps)
        started, base = time.monotonic(), self.seconds
        saved = logged = started
        measured: dict[str, list[float]] = defaultdict(list)
        batches = Batches(self.source, self.plan, self.settings.seed, self.step)
        if self.step < last:
            for batch in DataLoader(batches, batch_size=None, num_workers=1, prefetch_factor=4):
                stage, place = self.plan.at(self.step)
                self._one_step(batch, stage, place, measured)
                self.step += 1
                now = time.monotonic()
                self.seconds = base + now - started
                ends = place + 1 == stage.steps or self.step == last
                if ends or now - logged > self.settings.log_seconds:
                    self._log(stage, place + 1, measured)
                    logged = now
                if now - saved > self.settings.save_seconds:
                    self.save()
                    saved = now
                if self.step == last:
                    break
        self.save()
        return self.step >= self.plan.steps

    def save(self) -> None:
        """Replace the checkpoint in one step, so a kill leaves the old or the new one."""
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "at": [self.step, self.tokens, self.seconds],
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, self.checkpoint)

    def _load(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.settings.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        self.step, self.tokens, self.seconds = state["at"]
        curve = self.folder / "curve.jsonl"
        if curve.exists():  # what a kill took is trained again
            lines = curve.read_text(encoding="utf-8").splitlines(keepends=True)
            curve.write_text("".join(line for line in lines if json.loads(line)["step"] <= self.step), encoding="utf-8")

    def _one_step(self, batch: Batch, stage: Stage, place: int, measured: dict[str, list[float]]) -> None:
        device = self.settings.device

        def moved(name: str) -> torch.Tensor:
            return torch.from_numpy(getattr(batch, name)).to(device)

        ids, right, weights = moved("ids"), moved("right"), moved("weights")
        hidden = self.model(ids, moved("positions"), moved("hidden"), moved("blind_from"))
        logits = self.model.logits(hidden.flatten(0, 1)[moved("places")])
        allowed = logits.gather(1, right.clamp_min(0)).masked_fill(right < 0, -torch.inf).logsumexp(1)
        nats = logits.logsumexp(1) - allowed
        self.model.zero_grad(set_to_none=True)
        loss = (nats * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, error_if_nonfinite=True)
        last_rate = stage.rate if stage.last_rate is None else stage.last_rate
        rate = stage.rate + (last_rate - stage.rate) * place / stage.steps
        rate *= min(1.0, (self.step + 1) / WARM_UP)
        for optimiser, share in zip(self.optimisers, (1.0, stage.embedding_rate), strict=True):
            for group in optimiser.param_groups:
                group["lr"] = rate * share
            optimiser.step()
        self.tokens += ids.numel()
        measured["loss"].append(loss.item())
        hit = torch.ones(ids.numel(), dtype=torch.bool)
        hit[torch.from_numpy(batch.places)] = (logits.argmax(1, keepdim=True) == right).any(1).cpu()
        by_place = torch.full((ids.numel(),), torch.nan)
        by_place[torch.from_numpy(batch.places)] = nats.detach().cpu()
        for row, right_at, row_nats in zip(batch.rows, hit.view(ids.shape), by_place.view(ids.shape), strict=True):
            if row.kind == "text":
                measured["text nats"].append(float(row_nats.nanmean()))
            if row.hidden is None:
                for (first, last), name in zip(row.answers, row.names, strict=True):
                    measured[name].append(float(right_at[first - 1 : last - 1].all()))
                for first, last in row.values:
                    measured[f"{row.kind} value"].append(float(right_at[first - 1 : last - 1].all()))

    def _log(self, stage: Stage, place: int, measured: dict[str, list[float]]) -> None:
        line: dict[str, Any] = {"step": self.step, "stage": stage.name, "stage_step": place}
        line |= {"seconds": round(self.seconds, 1), "tokens": self.tokens}
        line |= {name: round(sum(values) / len(values), 4) for name, values in sorted(measured.items())}
        measured.clear()
        with (self.folder / "curve.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
