"""Write the model folder that travels inside the package.

Weights, tokenizer, configuration, held-out words; then, once everything is measured, the model card.
"""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from .card import card
from .evaluation import measure
from .network import Shape
from .tokenizer import load_tokenizer
from .words import load_words

LIMIT_MB = 16


def write_weights(run: Path, target: Path) -> list:
    """Write weights in bfloat16, configuration, tokenizer and held-out words of a training folder in the format of
    transformers.

    Returns the checkpoint's (step, tokens, seconds).
    """
    shape = Shape(**json.loads((run / "run.json").read_text(encoding="utf-8"))["shape"])
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    state = torch.load(run / "checkpoint.pt", map_location="cpu", weights_only=True)
    missing, unexpected = model.load_state_dict(state["model"], strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:
        raise ValueError(f"{run / 'checkpoint.pt'} is not of the shape in run.json: {unexpected or missing}")
    model.tie_weights()
    model.generation_config = GenerationConfig(eos_token_id=0, pad_token_id=0, bos_token_id=0, do_sample=False)
    target.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(target)
    load_tokenizer(run).save_pretrained(target)
    held_out = sorted(load_words(run, None).held_out)
    (target / "held_out_words.json").write_text(json.dumps(held_out, indent=0) + "\n", encoding="utf-8")
    return state["at"]


def export(run: Path, target: Path, samples: int, data: Path | None, device: str = "cpu") -> None:
    """Write, measure, describe; replace the target only when everything is there.

    What was measured is kept in the run's `figures.jsonl`, so that a stopped export goes on where it was.

    Raises:
        ValueError: the folder would be larger than what the package may carry.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        state = write_weights(run, folder)
        measured = measure(folder, samples, run / "figures.jsonl", data, device)
        hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
        (folder / "README.md").write_text(card(run, measured, hashes, state), encoding="utf-8")
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        if size > LIMIT_MB:
            raise ValueError(
                f"the model folder is {size:.1f} MB, at most {LIMIT_MB} MB travel: train a smaller --hidden"
            )
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target)
        for file in target.iterdir():
            file.chmod(0o644)
