"""The training loop.

Batches by step number, AdamW, a gate per stage, a log line now and then, a checkpoint that survives a kill.
"""

import json
import os
import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .chunked import register
from .curriculum import Stage
from .data import Source
from .families import Families
from .rows import GUESSED, Row, collate, visible

GATE_BATCHES = 40


@dataclass(frozen=True)
class Settings:
    """What a run is: the result of a run depends on these and the stages, not on the clock."""

    seed: int = 1
    learning_rate: float = 2e-3
    warmup: int = 300
    device: str = "cpu"
    half: bool = False
    log_every: int = 20
    save_seconds: float = 60.0


def build_model(vocabulary: int, hidden: int, layers: int, seed: int) -> LlamaForCausalLM:
    """A small Llama: 4 query heads share 2 KV heads of size 64, rotary positions, tied embeddings."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=0.02,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    torch.random.set_rng_state(state)
    return model


class Trainer:
    """One run in one folder.

    The state is (weights, optimiser, stage, step); batches are functions of seed and step, so there is no RNG to
    save.
    """

    def __init__(
        self, folder: Path, settings: Settings, stages: tuple[Stage, ...], source: Source, model: LlamaForCausalLM
    ):
        self.folder, self.settings, self.stages, self.source = folder, settings, stages, source
        self.families = Families(source)
        self.model = model
        if settings.device == "cpu":
            model.set_attn_implementation(register())
        model.to(torch.device(settings.device))  # type: ignore[arg-type]
        self.optimiser = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0
        )
        self.stage = self.stage_step = self.step = self.tokens = 0
        self.seconds = 0.0
        self.recent: deque[float] = deque(maxlen=GATE_BATCHES)
        self.asked: dict[str, list[float]] = {}
        self.checkpoint = folder / "checkpoint.pt"
        if self.checkpoint.exists():
            self._load()

    def run(self, max_steps: int | None = None) -> bool:
        """Train until the last stage ends or `max_steps` in total; True when everything is done."""
        started, saved, base = time.monotonic(), time.monotonic(), self.seconds
        losses: dict[str, list[float]] = {}
        while self.stage < len(self.stages) and (max_steps is None or self.step < max_steps):
            stage = self.stages[self.stage]
            kind, loss, right = self._one_step(stage)
            losses.setdefault(kind, []).append(loss)
            losses.setdefault(f"{kind}_right", []).append(right)
            if kind == stage.judged:
                self.recent.append(right)
            self.step += 1
            self.stage_step += 1
            self.seconds = base + time.monotonic() - started
            if self.step % self.settings.log_every == 0:
                self._log(stage, losses)
                losses = {}
            passed = len(self.recent) == GATE_BATCHES and sum(self.recent) / GATE_BATCHES >= stage.gate
            if passed or self.stage_step >= stage.steps:
                self._log(stage, losses, "passed" if passed else "steps used up")
                self.stage, self.stage_step, losses = self.stage + 1, 0, {}
                self.recent.clear()
            if time.monotonic() - saved > self.settings.save_seconds:
                self.save()
                saved = time.monotonic()
        self.save()
        return self.stage >= len(self.stages)

    def save(self) -> None:
        """Replace the checkpoint in one step, so a kill leaves the old or the new one."""
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "at": [self.stage, self.stage_step, self.step, self.tokens, self.seconds, list(self.recent)],
        }
        part = self.checkpoint.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, self.checkpoint)

    def _load(self) -> None:
        state = torch.load(self.checkpoint, map_location=self.settings.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.stage, self.stage_step, self.step, self.tokens, self.seconds, recent = state["at"]
        self.recent.extend(recent)
        curve = self.folder / "curve.jsonl"
        kept = [
            line for line in curve.read_text(encoding="utf-8").splitlines() if json.loads(line)["step"] <= self.step
        ]
        curve.write_text("".join(line + "\n" for line in kept), encoding="utf-8")  # what a kill took is trained again

    def _rate(self, stage: Stage) -> float:
        rate = stage.rate * self.settings.learning_rate * min(1.0, (self.step + 1) / self.settings.warmup)
        return rate * (1.0 - 0.97 * self.stage_step / stage.steps) if stage.decay else rate

    def _draw(self, stage: Stage) -> tuple[str, list[Row]]:
        rng = random.Random(f"reference model {self.settings.seed}/{self.step}")
        which = rng.random()
        if stage.blend and which >= stage.copy_share:
            evicted = which > 1.0 - stage.evicted_share
            tokens, batch = stage.blend.length(rng)
            draw = self.families.evicted if evicted else self.families.row
            return "evicted" if evicted else "families", [draw(rng, stage.blend, tokens) for _ in range(batch)]
        if which < stage.copy_share or stage.mix is None:
            return "copying", [self.source.copying(rng, stage.copy_tokens) for _ in range(stage.copy_batch)]
        if which < stage.copy_share + stage.text_share and self.source.books:
            return "text", [self.source.text(rng, stage.mix.tokens // 2) for _ in range(stage.batch)]
        if which < stage.copy_share + stage.text_share + stage.spaced_share and stage.spaced:
            tokens, batch = _even(rng, stage.shortest, stage.spaced.tokens, stage.spaced_batch)
            return "spaced", [self.source.spaced(rng, stage.spaced, tokens) for _ in range(batch)]
        if which > 1.0 - stage.evicted_share:
            tokens, batch = _even(rng, stage.shortest, stage.mix.tokens, stage.batch)
            return "evicted", [self.source.evicted(rng, stage.mix, tokens) for _ in range(batch)]
        if not stage.even:
            return "needles", [self.source.needles(rng, stage.mix) for _ in range(stage.batch)]
        tokens, batch = _even(rng, stage.shortest, stage.mix.tokens, stage.batch)
        return "needles", [self.source.needles(rng, stage.mix, tokens) for _ in range(batch)]

    def _one_step(self, stage: Stage) -> tuple[str, float, float]:
        kind, rows = self._draw(stage)
        arrays = (torch.from_numpy(array).to(self.settings.device) for array in collate(rows))
        ids, positions, weights = arrays
        # an explicit mask: without one, jumps in the positions are taken for packed sequences
        predict = torch.zeros_like(weights, dtype=torch.bool)
        predict[:, :-1] = weights[:, 1:] > 0
        targets = torch.roll(ids, -1, 1)[predict]
        scale = torch.roll(weights, -1, 1)[predict]
        mask = torch.ones_like(ids) if self.settings.device != "cpu" else None
        if kind == "evicted":
            mask = torch.from_numpy(visible(rows, ids.shape[1])).to(ids.device)
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=self.settings.half):
            hidden = self.model.model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)[0]
            logits = self.model.lm_head(hidden[predict])
        losses = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
        loss = (losses * scale).sum() / scale.sum()
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate(stage)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.tokens += int(sum(len(row.ids) for row in rows))
        hit = torch.zeros_like(predict)
        hit[predict] = logits.argmax(-1) == targets
        certain = scale < GUESSED
        if certain.any():
            self.asked.setdefault("text nats", []).append(float(losses.detach()[certain].mean()))
        return kind, float(loss.detach()), self._right(kind, rows, hit.cpu(), predict.cpu())

    def _right(self, kind: str, rows: list[Row], hit: torch.Tensor, predict: torch.Tensor) -> float:
        """Share of right tokens (copying, text), or of answers right to the last token (the end token too)."""
        spans = [(index, place) for index, row in enumerate(rows) for place in range(len(row.answers))]
        if kind in ("copying", "text") or not spans:
            return float(hit.sum() / predict.sum())
        whole = []
        for index, place in spans:
            first, last = rows[index].answers[place]
            whole.append(bool(hit[index, first - 1 : last - 1].all()))
            if names := rows[index].names:
                self.asked.setdefault(names[place], []).append(whole[-1])
        return sum(whole) / len(whole)

    def _log(self, stage: Stage, losses: dict[str, list[float]], note: str = "") -> None:
        line = {
            "step": self.step,
            "stage": stage.name,
            "stage_step": self.stage_step,
            "seconds": round(self.seconds, 1),
            "tokens": self.tokens,
        }
        line |= {name: round(sum(values) / len(values), 4) for name, values in losses.items()}
        line |= {name: round(sum(values) / len(values), 4) for name, values in sorted(self.asked.items())}
        self.asked = {}
        line |= {"note": note} if note else {}
        with (self.folder / "curve.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _even(rng: random.Random, shortest: float, tokens: int, batch: int) -> tuple[int, int]:
    """One length for all rows of a step (little padding), and as many rows as keep the step's tokens."""
    drawn = rng.randint(int(tokens * shortest), tokens)
    return drawn, batch * tokens // drawn
