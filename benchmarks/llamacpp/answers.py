"""What llama.cpp makes of a GGUF file; run by the interpreter that has llama-cpp-python, which needs no kvbench.

python answers.py tokens FILE PRE < texts.json > ids.json
python answers.py logits FILE OUT.npy < ids.json
"""

import json
import sys

import numpy as np
from llama_cpp import Llama  # pyright: ignore[reportMissingImports]  # not in our environment

F32 = 0
"""Type of the keys and values in the cache, by the number that ggml has for it."""


def main() -> None:
    """Answer the verb of the command line."""
    verb, file, argument = sys.argv[1:]
    given = json.load(sys.stdin)
    if verb == "tokens":
        model = Llama(file, vocab_only=True, verbose=False, kv_overrides={"tokenizer.ggml.pre": argument})
        ids = [model.tokenize(text.encode(), add_bos=False, special=True) for text in given]
        json.dump(ids, sys.stdout)
        return
    size = len(given)
    model = Llama(
        file,
        n_ctx=size,
        n_batch=size,
        n_ubatch=size,
        logits_all=True,
        type_k=F32,
        type_v=F32,
        n_threads=2,
        verbose=False,
    )
    model.eval(given)
    np.save(argument, np.array(model.scores[:size], dtype=np.float32))


if __name__ == "__main__":
    main()
