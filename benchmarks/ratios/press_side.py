"""kvpress' side of a comparison of kept sets: each press by its own hooks, on models in a folder.

    PYTHON_OF_ITS_OWN benchmarks/ratios/press_side.py FOLDER

FOLDER holds models and prompt.json. Prints one JSON object: by model, press and pairs, what each layer and head keeps
({"kept": [[positions]]}) or the error.
"""

import json
import sys
from pathlib import Path
from typing import Any

import kvpress  # pyright: ignore[reportMissingImports]  # not in our environment
import torch
from transformers import AutoModelForCausalLM, DynamicCache

sys.path.insert(0, str(Path(__file__).parent))
from presses import CASES, KEPT, ratio, stand_in


def main() -> None:
    """Keep, and print."""
    folder = Path(sys.argv[1])
    ids = torch.tensor([json.loads((folder / "prompt.json").read_text("utf-8"))])
    stand_in(kvpress)
    kept_sets: dict[str, Any] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        for name, args in CASES.items():
            attention = "eager" if name == "ObservedAttentionPress" else "sdpa"
            model: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=torch.float32, attn_implementation=attention
            ).eval()
            for pairs in KEPT:
                kept_sets[f"{path.name} {name} {pairs}"] = kept(model, name, args, pairs, ids)
    print(json.dumps(kept_sets))


@torch.inference_mode()
def kept(model: Any, name: str, args: dict[str, Any], pairs: int, ids: torch.Tensor) -> dict[str, Any]:
    """What is kept of a prompt of distinct tokens: their values tell which. Masked pairs count as evicted."""
    full: Any = DynamicCache()
    cache: Any = DynamicCache()
    tokens = ids.shape[1]
    press = built(name, args)
    press.compression_ratio = ratio(tokens, pairs)
    seeds = [
        layer.self_attn.register_forward_pre_hook(lambda module, _: torch.manual_seed(module.layer_idx) and None)
        for layer in model.model.layers
    ]
    try:
        model(ids, past_key_values=full)
        for layer in model.model.layers:
            layer.self_attn.masked_key_indices = None
        with press(model):
            model(ids, past_key_values=cache)
    except Exception as error:  # what fails there is a line of the table
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"}
    finally:
        for seed in seeds:
            seed.remove()
    layers = []
    for number, layer in enumerate(model.model.layers):
        same = (cache.layers[number].values[0][:, :, None] == full.layers[number].values[0][:, None]).all(-1)
        mask = same.any(1)
        if layer.self_attn.masked_key_indices is not None:
            _, heads, positions = layer.self_attn.masked_key_indices
            mask[heads, positions] = False
        layers.append([row.nonzero()[:, 0].tolist() for row in mask])
    return {"kept": layers, "held": sum(layer.keys.shape[1] * layer.keys.shape[2] for layer in cache.layers)}


def built(name: str, args: dict[str, Any]) -> Any:
    """An instance of a press."""
    args = {key: built(value["press"], value["args"]) if key == "press" else value for key, value in args.items()}
    late = {"window_size": args.pop("window_size")} if name == "FinchPress" else {}
    press = getattr(kvpress, name)(**args)
    for key, value in late.items():
        setattr(press, key, value)
    if name == "FinchPress":  # its own context manager wants a token between context and question
        press.__class__ = type("FinchPress", (kvpress.FinchPress,), {"__call__": kvpress.BasePress.__call__})
    return press


if __name__ == "__main__":
    main()
