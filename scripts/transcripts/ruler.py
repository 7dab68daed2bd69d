"""RULER: the generators of both eras and `HuggingFaceModel`, with a model that only records.

A generator is imported once per task; its `main` runs again for each tokenizer and chat template, after its seeds.
nltk's sentence splitter is Punkt without English parameters, which need a download; kvbench's `splitter=bare` is the
same.
"""

import json
import random
import shutil
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import wonderwords
import yaml

from scripts.transcripts.stand_ins import Recorder, load
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.made_up import SAMPLES, members
from tests.transcripts.transcript import RULER_TOKENS, Transcript, case, transcript

MODELS = {"raw": "base", "meta": "meta-chat"}
"""Our chat templates and the official ones."""
WRAPPED = ("niah_single_1", "vt", "fwe")
"""Tasks that are also generated for the second template; their scripts measure prompts alike."""
SEED = 42


@contextmanager
def known(words: list[str]) -> Iterator[None]:
    """niah.py makes its six million pairs of words at import, which takes seconds: once is enough."""
    lists = wonderwords.random_word._get_words_from_text_file
    if words:
        wonderwords.random_word._get_words_from_text_file = lambda _: []
    yield
    wonderwords.random_word._get_words_from_text_file = lists


class Counter:
    """`HFTokenizer` of tokenizer.py without loading."""

    def __init__(self, tok: Any) -> None:
        self.tokenizer = tok

    def text_to_tokens(self, text: str) -> list[str]:
        return self.tokenizer.tokenize(text)


def era_2024(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """As `transcripts`; the names of tasks end with the era."""

    def write(path: Path, rows: list[dict[str, Any]]) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")

    name = "nemo.collections.asr.parts.utils.manifest_utils"
    sys.modules[name] = types.SimpleNamespace(write_manifest=write, read_manifest=None)  # type: ignore[assignment]
    yield from transcripts(checkout, root, "/2024")


def transcripts(checkout: Path, root: Path, suffix: str = "") -> Iterator[tuple[str, Transcript]]:
    """The first prompts of every task."""
    import nltk
    import transformers
    from nltk.tokenize.punkt import PunktSentenceTokenizer

    nltk.tokenize.sent_tokenize = lambda text: PunktSentenceTokenizer().tokenize(text)
    with TemporaryDirectory() as folder:
        scripts = Path(folder) / "scripts"
        shutil.copytree(checkout / "scripts", scripts)
        data, texts = scripts / "data", scripts / "data" / "synthetic" / "json"
        essays = "".join(path.read_text("utf-8") for path in sorted((root / "paul_graham_essays").glob("*.txt")))
        (texts / "PaulGrahamEssays.json").write_text(json.dumps({"text": essays}))
        (texts / "english_words.json").write_text("{}")
        for name in ("squad", "hotpotqa"):
            shutil.copy(root / "ruler" / f"{name}.json", texts)
        sys.path[:0] = [str(data), str(data / "synthetic")]
        wrappers = load(scripts / "pred" / "model_wrappers.py", "ruler_wrappers")
        templates = load(data / "template.py", "ruler_template").Templates
        tasks = load(data / "synthetic" / "constants.py", "constants").TASKS
        settings = yaml.safe_load((scripts / "synthetic.yaml").read_text("utf-8"))
        sys.modules["tokenizer"] = types.SimpleNamespace(select_tokenizer=lambda *_: None)  # type: ignore[assignment]
        transformers.pipeline = None  # type: ignore[assignment]  # it fails, as where a model has none
        words: list[str] = []
        for member in members("ruler"):
            config = {**settings[member], **tasks[settings[member]["task"]]}
            flags = {"save_dir": folder, "save_name": member, "tokenizer_path": "", "tokenizer_type": "hf"}
            flags |= {"max_seq_length": RULER_TOKENS, "tokens_to_generate": config["tokens_to_generate"]}
            flags |= {"num_samples": SAMPLES, "random_seed": SEED, "template": "", **config["args"]}
            sys.argv = ["", *(word for flag, value in flags.items() for word in (f"--{flag}", str(value)))]
            with known(words) if config["task"] == "niah" else nullcontext():
                generator = load(data / "synthetic" / f"{config['task']}.py", "ruler_generator")
            if config["task"] == "niah":
                words = generator.words = words or generator.words
            for family in FAMILIES:
                for template, name in MODELS.items():
                    if template != "raw" and member not in WRAPPED:
                        continue
                    tok = tokenizer(family, template)
                    generator.TOKENIZER = Counter(tok)
                    wrapped = templates[name].format(task_template=config["template"])
                    generator.args.template = wrapped + config.get("answer_prefix", "")
                    random.seed(SEED)
                    np.random.seed(SEED)
                    generator.main()
                    lines = (Path(folder) / member / "validation.jsonl").read_text("utf-8").splitlines()
                    for number, line in enumerate(lines):
                        row, recorder = json.loads(line), Recorder()
                        given = {"AutoTokenizer": tok, "AutoModelForCausalLM": recorder}
                        for loaded, value in given.items():
                            loader = types.SimpleNamespace(from_pretrained=lambda *_, value=value, **__: value)
                            setattr(transformers, loaded, loader)
                        model = wrappers.HuggingFaceModel("", stop=[], max_new_tokens=config["tokens_to_generate"])
                        model.process_batch([row["input"] + row.get("answer_prefix", "")])
                        (asked,) = recorder.asked
                        stop = asked.get("eos_token_id")
                        yield (
                            case(f"ruler/{member}{suffix}", family, template, number),
                            transcript(asked["ids"], None, stop, asked["max_new_tokens"]),
                        )
