"""Words of kvpress, lm-evaluation-harness and the papers' code, and the settings that they are here."""

import re
from collections.abc import Sequence

from kvbench.support.plugins import items

PRESSES = {
    "adakv": "policy=ada_snapkv",
    "adakvsnapkv": "policy=ada_snapkv",
    "attentionsink": "policy=streaming_llm",
    "compactor": "policy=plain score=compactor",
    "criticaladakvexpectedattention": "policy=ada_snapkv score=criticalkv score.host=expected_attention",
    "criticaladakvsnapkv": "policy=ada_snapkv score=criticalkv",
    "criticalexpectedattention": "policy=plain score=criticalkv score.host=expected_attention",
    "criticalsnapkv": "policy=snapkv score=criticalkv",
    "duoattentiononthefly": "policy=duo_attention score.path=FILE",
    "fullkv": "policy=full",
    "leveragescore": "policy=plain score=leverage",
    "noncausalattn": "policy=plain score=non_causal",
    "knorm": "policy=plain score=key_norm",
    "l2norm": "policy=plain score=key_norm",
    "no": "policy=full",
    "none": "policy=full",
    "observedattention": "policy=h2o_full policy.reduce=observed_attention policy.recent=0",
}
"""Methods by their names in small letters, without `_` and `press`, where ours is another or none."""
SETTINGS = {
    "attn_implementation": "model.attention=VALUE",
    "base_capacity": "budget=VALUE",
    "data_dir": "task.context_length=VALUE",
    "dataset": "task=VALUE",
    "datasets": "task=VALUE",
    "heavy_ratio": "budget=HEAVY+RECENT policy.recent={part:0.5,of:budget}",
    "ratio": "budget=VALUE (the share of KV pairs that is kept)",
    "recent_ratio": "budget=HEAVY+RECENT policy.recent={part:0.5,of:budget}",
    "kernel_size": "policy.pool.size=VALUE",
    "limit": "task.samples=VALUE",
    "max_capacity_prompt": "budget=VALUE",
    "max_capacity_prompts": "budget=VALUE",
    "max_context_length": "task.max_prompt_tokens=VALUE",
    "max_gen_toks": "task.max_new_tokens=VALUE",
    "model_name": "model=hf model.path=VALUE",
    "model_name_or_path": "model=hf model.path=VALUE",
    "model_path": "model=hf model.path=VALUE",
    "n_initial": "policy.sink=VALUE",
    "n_recent": "policy.recent=VALUE",
    "n_sink": "policy.sink=VALUE",
    "num_samples": "task.samples=VALUE",
    "output_dir": "results.dir=VALUE",
    "output_path": "results.dir=VALUE",
    "pooling": "policy.pool.kind=avg|max",
    "pretrained": "model=hf model.path=VALUE",
    "query_aware": "schedule.evict_after=prompt (query-aware) or context",
    "recent_size": "policy.recent=VALUE",
    "save_dir": "results.dir=VALUE",
    "start_size": "policy.sink=VALUE",
    "tasks": "task=VALUE",
    "window_size": "policy.window=VALUE",
}
METHODS = ("press", "press_name", "method", "methods")


def here(key: str, values: Sequence[str]) -> str | None:
    """What `key=values` of another tool is here, as it is written on a command line; None if nothing is known."""
    if key == "compression_ratio":
        kept = [str(round(1 - float(value), 6)) for value in values if re.fullmatch(r"0?\.\d+|0", value)]
        return f"budget={','.join(kept) or 'SHARE'} (the share of KV pairs that is kept: 1 - compression_ratio)"
    if key in (*METHODS, "policy", "score"):
        methods = [method for value in values if (method := _method(value, key))]
        return " or ".join(methods) or ("policy=NAME (kvbench list policies)" if key in METHODS else None)
    if key == "model":
        folder, _, name = values[0].rpartition("/")
        is_path = folder not in ("", "shape") and name.lower() not in items("model")
        return f"model=hf model.path={values[0]}" if is_path else None
    return SETTINGS[key].replace("VALUE", ",".join(values)) if key in SETTINGS else None


def _method(name: str, key: str) -> str | None:
    if (plain := _plain(name)) in PRESSES and key in METHODS:
        return PRESSES[plain]
    policies, scores = ({_plain(item): item for item in items(group)} for group in ("policy", "score"))
    if plain in policies and (key != "score" or plain not in scores):
        return f"policy={policies[plain]}"
    if plain in scores:
        return f"score={scores[plain]}" if key == "score" else f"policy=plain score={scores[plain]}"
    return PRESSES.get(plain)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower()).removesuffix("press")
