"""Compare kvbench with llama.cpp on a GGUF file.

    python -m benchmarks.llamacpp --python VENV/bin/python [--texts 10000] [--tokens 1000] [--text LICENSE] FILE.gguf

VENV is an environment with llama-cpp-python; 0 texts or tokens leave a part out. Printed are two tables:

* tokens: texts whose tokens differ from those of llama.cpp, of the rule built from the package tokenizers, and of
  transformers' own reading of the file; then, for every other rule that kvbench knows, from those of llama.cpp with the
  vocabulary of this file. llama.cpp does not normalise: for a rule that does, texts are compared that it leaves alone.
  Texts with a byte that is no token of the vocabulary are counted apart: the package tokenizers merges what stands
  beside such a byte, llama.cpp does not.
* logits of every token of a text, read at once: largest and relative difference, and tokens whose best logit is that of
  another token, of the file as it is (llama.cpp rounds activations to 8 bits for quantised weights) and of the same
  weights written as F32; with kvbench in float64 as the measure of what float32 itself loses.

Ends with 1 if a text of the file's own rule differs, or a best logit of the F32 weights.
"""

import argparse
import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.constants import GGUFValueType
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.llamacpp.texts import texts
from kvbench.cache.attention import explicit
from kvbench.extras.gguf.metadata import metadata
from kvbench.extras.gguf.tokenizer import CONTROL, RULES, tokenizer_json
from kvbench.models import bridge
from kvbench.models.loading.load import load, model_info
from kvbench.models.loading.spec import Dtype, ModelSpec
from kvbench.models.prefill import Prefill

Ids = list[list[int]]
Logits = np.ndarray[Any, Any]


def main() -> int:
    """Print both tables; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llamacpp", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--python", required=True, help="the interpreter that has llama-cpp-python")
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=1_000)
    parser.add_argument("--text", type=Path, default=Path("LICENSE"))
    flags = parser.parse_args()
    wrong = compare_tokens(flags.file, flags.python, texts(flags.texts)) if flags.texts else 0
    if flags.tokens:
        wrong += compare_logits(flags.file, flags.python, flags.text, flags.tokens)
    return int(wrong > 0)


def compare_tokens(file: Path, python: str, given: list[str]) -> int:
    """Print the table of tokens; the number of texts that differ by the rule of the file."""
    fields = metadata(file)
    own = fields["tokenizer.ggml.pre"]
    lacking = set(pre_tokenizers.ByteLevel.alphabet()) - set(fields["tokenizer.ggml.tokens"])
    whole = [text for text in given if not lacking & set(_bytes_as_characters(text))]
    rest = [text for text in given if lacking & set(_bytes_as_characters(text))]
    ours = ids_of(_tokenizer(fields, own), whole)
    differing = _differing(ours, _llama_tokens(python, file, own, whole))
    print(f"tokens of {len(whole)} texts, {sum(map(len, ours))} tokens: texts that differ from")
    print(f"  llama.cpp, {own}: {differing}")
    if own == "smollm":
        print(f"  the rule built from its parts: {_differing(ours, ids_of(single_digits(fields), whole))}")
    print(f"  transformers, which does without the rule: {_differing(ours, _transformers_tokens(file, whole))}")
    for pre, rule in RULES.items():
        if pre != own:
            left = [text for text in whole if not rule.normalizer or unicodedata.is_normalized(rule.normalizer, text)]
            count = _differing(ids_of(_tokenizer(fields, pre), left), _llama_tokens(python, file, pre, left))
            print(f"  llama.cpp, {pre}, {len(left)} texts: {count}")
    count = _differing(ids_of(_tokenizer(fields, own), rest), _llama_tokens(python, file, own, rest))
    print(f"{len(rest)} texts have a byte that is no token; they differ from\n  llama.cpp, {own}: {count}")
    return differing


def _bytes_as_characters(text: str) -> str:
    """The bytes of a text as byte-level tokens write them."""
    return (
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0] if text else ""
    )


def single_digits(fields: dict[str, Any]) -> Tokenizer:
    """The publisher's rule for SmolLM, from the parts that the package tokenizers has for it."""
    vocabulary = {token: number for number, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token, kind in kinds if kind == CONTROL])
    return tokenizer


def ids_of(tokenizer: Tokenizer, given: list[str]) -> Ids:
    """Tokens of texts, without those that begin a text."""
    return [encoding.ids for encoding in tokenizer.encode_batch(given, add_special_tokens=False)]


def _tokenizer(fields: dict[str, Any], pre: str) -> Tokenizer:
    content = tokenizer_json(fields | {"tokenizer.ggml.pre": pre}, pre)
    return Tokenizer.from_str(json.dumps(content))


def _transformers_tokens(file: Path, given: list[str]) -> Ids:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    return [tokenizer(text, add_special_tokens=False).input_ids for text in given]


def _llama(python: str, verb: str, file: Path, argument: str, given: Any) -> str:
    program = Path(__file__).with_name("answers.py")
    command = [python, str(program), verb, str(file), argument]
    return subprocess.run(command, input=json.dumps(given), stdout=subprocess.PIPE, text=True, check=True).stdout


def _llama_tokens(python: str, file: Path, pre: str, given: list[str]) -> Ids:
    return json.loads(_llama(python, "tokens", file, pre, given))


def _differing(first: Ids, second: Ids) -> int:
    return sum(one != other for one, other in zip(first, second, strict=True))


def compare_logits(file: Path, python: str, text: Path, count: int) -> int:
    """Print the table of logits; the number of tokens whose best logit differs with F32 weights."""
    ids = ids_of(_tokenizer(metadata(file), metadata(file)["tokenizer.ggml.pre"]), [text.read_text("utf-8")])[0][:count]
    ours, exact = our_logits(file, "float32", ids), our_logits(file, "float64", ids)
    with TemporaryDirectory() as folder:
        plain = Path(folder, "f32.gguf")
        write_f32(file, plain)
        theirs = {
            "as it is": _llama_logits(python, file, ids, folder),
            "written as F32": _llama_logits(python, plain, ids, folder),
        }
    print(f"logits of {len(ids)} tokens of {text.name}, standard deviation {exact.std():.3g}")
    print(f"  kvbench float32 and float64: {_difference(ours, exact)}")
    for name, logits in theirs.items():
        print(f"  kvbench float32 and llama.cpp, the file {name}: {_difference(ours, logits)}")
        print(f"  kvbench float64 and llama.cpp, the file {name}: {_difference(exact, logits)}")
    return int((ours.argmax(-1) != theirs["written as F32"].argmax(-1)).sum())


@torch.inference_mode()
def our_logits(file: Path, dtype: Dtype, ids: list[int]) -> Logits:
    """Logits [tokens, vocabulary] of kvbench's own attention, all tokens read at once."""
    model = load(model_info(ModelSpec("hf", str(file), dtype=dtype, device="cpu"))).engine.model
    reader = Prefill(len(ids), (), len(ids), explicit)
    return bridge.logits(model, torch.tensor([ids]), 0, reader, last=len(ids))[0].double().numpy()


def write_f32(file: Path, out: Path) -> None:
    """The same GGUF file with all weights dequantised to F32."""
    reader = GGUFReader(file)
    writer = GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        items = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], items)
    writer.add_file_type(0)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, dequantize(tensor.data, tensor.tensor_type), raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _llama_logits(python: str, file: Path, ids: list[int], folder: str) -> Logits:
    out = Path(folder, "logits.npy")
    _llama(python, "logits", file, str(out), ids)
    return np.load(out).astype(np.float64)


def _difference(first: Logits, second: Logits) -> str:
    change = first - second
    other = first.argmax(-1) != second.argmax(-1)
    two = np.sort(second, axis=-1)[other, -2:]
    gap = f", whose two best differ by at most {np.ptp(two, axis=-1).max():.2g}" if other.any() else ""
    relative = np.linalg.norm(change) / np.linalg.norm(second)
    return f"largest {np.abs(change).max():.2g}, relative {relative:.2g}, best token differs at {other.sum()}{gap}"


if __name__ == "__main__":
    sys.exit(main())
