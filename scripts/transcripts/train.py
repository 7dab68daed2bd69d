"""The two small vocabularies of tests/transcripts/families.py, trained on this repository's pages."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.transcripts.families import FOLDER, SPECIAL

DOCS = Path(__file__).parents[2] / "docs"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def train() -> None:
    """Write tests/golden/transcripts/tokenizers/*.json: 1000 tokens at byte level, 1256 with blanks."""
    pages = [path.read_text("utf-8") for path in sorted(DOCS.glob("*.md"))]
    at_bytes = Tokenizer(models.BPE())
    at_bytes.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": list(SPECIAL), "initial_alphabet": alphabet, "show_progress": False}
    at_bytes.train_from_iterator(pages, trainers.BpeTrainer(vocab_size=1000, **options))
    blanks = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    blanks.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    options = {"special_tokens": ["<unk>", *SPECIAL, *BYTES], "limit_alphabet": 90, "show_progress": False}
    blanks.train_from_iterator(pages, trainers.BpeTrainer(vocab_size=1256, **options))
    for name, trained in (("bytes", at_bytes), ("blanks", blanks)):
        (FOLDER / "tokenizers").mkdir(parents=True, exist_ok=True)
        content = json.loads(trained.to_str())
        content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in BYTES]
        (FOLDER / "tokenizers" / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False) + "\n", "utf-8")
