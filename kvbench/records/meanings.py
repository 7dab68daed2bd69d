"""Meaning of each column of a row; blank is None, null in JSON."""

MEANINGS = {
    "cell": (
        "Sixteen hex digits, the hash of the complete description in `cells/<cell>.json`: defaults, model bytes and "
        "data bytes included"
    ),
    "sample": "Number of the sample, from 0; the same prompt in every cell of a task",
    "model": "Name of the model, or its path as given",
    "task": "Name, such as `ruler/niah_single_1`",
    "task_version": "Protocol and version of its implementation; changes when a prompt or a metric does",
    "context_length": "Length as the protocol counts it; blank: texts have lengths of their own",
    "policy": (
        "Name, `@common` where that is its protocol, then each changed field (`snapkv window=16`), a quantised store "
        "and a reader"
    ),
    "score": "Name and changed fields; blank: the policy takes no score",
    "budget": (
        "As requested: `0.1` of the tokens read before the eviction, `128` KV pairs per head, or `600KiB` of KV pairs"
        " per prompt; with `budget_span=context` in `policy`, in addition to the first tokens"
    ),
    "variant": (
        "Side of a disagreement, `paper` or `official`; blank: `policy` names the protocol or the setting, and the "
        "side is not `official`"
    ),
    "protocol": "`paper` or `common`: source of the settings that `policy` does not name; blank: rows of servers",
    "layout": "`kv_heads` or `query_heads`",
    "schedule": "`prompt` or `context`, then block evictions and decode evictions if there are any",
    "seed": "Seed of generated prompts and of random scores",
    "prompt_tokens": "Tokens read before the answer, chat template included; of a text, all tokens",
    "kept_tokens": "KV pairs per KV head right after the eviction, mean over heads and evictable layers",
    "kept_fraction": "`kept_tokens` over the tokens read before the eviction",
    "local_layers": "Layers with a sliding window of their own, which are not evicted from",
    "cache_bytes": (
        "Keys and values right after the eviction, as complete storages; a question that is read later is held too, "
        "unquantised, and is added by reports"
    ),
    "full_cache_bytes": "Keys and values of the cache before the eviction",
    "allocated_bytes": (
        "`cache_bytes` with positions and other state of each KV pair, and with the empty places of partly filled pages"
    ),
    "peak_bytes": "Most that the cell held while it answered, space for the answer included",
    "read_bytes": (
        "Keys and values that attention reads for a token of the answer, in all layers, mean over the tokens after "
        "the first: all that is held, unless a reader reads a part; a pair that several query heads read counts once;"
        " blank: an answer of one token, stores other than `flat`, cells that evict from the answer"
    ),
    "index_bytes": (
        "What a reader reads besides to choose pairs (minima and maxima of pages, label channels), for the same "
        "tokens; 0: no reader"
    ),
    "store": "`flat` (evicted bytes are freed), or the name of a quantised store",
    "weights": (
        "How the checkpoint stores its weights: `Q4_1` and others of GGUF, `fp8`, `mxfp4`, `nf4`, `int8`; dequantised"
        " where transformers does so; blank: plain numbers"
    ),
    "prefill_seconds": "Reading the prompt; several cells share a prefill, so do not sum it over cells",
    "evict_seconds": "Scoring and eviction; work that cells share counts in full for each of them",
    "decode_seconds": (
        "Question and answer; of a step that cells share, an equal part; of a server that streams, from the first "
        "token of the answer to its end"
    ),
    "first_token_seconds": (
        "Of a server that streams: from the request to the first token of the answer, the network and the server's "
        "queue included; blank: all other rows"
    ),
    "production_seconds": (
        "Of tasks that time steps: a step as in production, median; blank: all other rows, and methods without a graph"
    ),
    "new_tokens": "Tokens of the answer; of a text, tokens scored",
    "reasoning_tokens": (
        "Tokens of the reasoning before the answer, without its marks; 0: none; blank: the model marks none, or "
        "`task.reasoning=keep`"
    ),
    "reasoning": (
        "`whole`: an answer follows, and the metric reads that part alone; `cut`: the answer ends within it and "
        "scores 0; blank: none"
    ),
    "ended": (
        "Why the answer ended: `end` (an end token of the model), `limit` (`max_new_tokens`) or `stop` (a text of "
        "`task.stop`); blank: unknown"
    ),
    "decode_evictions": (
        "How often pairs left the cache between the eviction of the prompt and the end of the answer: while a later "
        "question, earlier turns or a text are read, too; blank: unknown (servers)"
    ),
    "prediction": "The answer with its reasoning, without the text that ended it",
    "metric": "Name of the metric",
    "unit": ("Unit of the metric: `share` (0 to 1, printed in %), `nats per token`, `seconds`, ..."),
    "better": "`higher` or `lower`: which of two values is better",
    "value": "The metric, in its `unit`",
    "error": "Why there is no value",
    "prompt_sha256": "Hash of the text that was read, or of its token ids where texts are truncated at a token",
    "context_sha256": (
        "Hash of the context's text, or of the beginning of an agent's run; samples that share it are one cluster in "
        "statistics"
    ),
    "question_number": "Number of the question from 1, where several are asked about one context",
    "border_tokens": (
        "With `schedule.evict_after=context`, tokens that differ from the tokens of the whole prompt because one "
        "crosses the border between context and question; blank: none"
    ),
    "recurrent_layers": "Layers with a recurrent state, which is never evicted; blank: none",
    "recurrent_bytes": "Recurrent states of one sequence; in no other column",
    "output_sha256": "Hash of the token ids of the answer",
    "kept_sha256": "Hash of the mask of kept KV pairs",
    "top2_margin": (
        "Smallest gap between the two best logits over the answer; below the rounding step of the dtype, noise may "
        "flip it"
    ),
    "environment": (
        "Name of a file in `environments/`: commit, changed files, package versions, device, variables that change "
        "numbers"
    ),
    "code": ("Name of a file in `codes/`: hashes of the code that the cell ran; `no source`: it could not be read"),
    "replaces": (
        "Rows of the sample made before, by other code or with an error, that this row counts instead of; blank: none"
    ),
}
"""The keys are the columns, in their order."""
