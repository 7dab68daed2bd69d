"""HELMET, and LongProc as HELMET runs it: eval.py as it is, with a model that only records.

Its configs are read as they are; of their lengths the shortest is run, and of chat templates those that a config asks
for.
"""

import os
import re
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from kvbench.extras.helmet.tests import rows as helmet_rows
from kvbench.extras.longproc.tests import rows as longproc_rows
from scripts.transcripts.longbench import rows
from scripts.transcripts.stand_ins import Recorder, empty, load
from tests.transcripts.families import FAMILIES, model_ends, tokenizer
from tests.transcripts.made_up import SAMPLES, members
from tests.transcripts.transcript import Transcript, case, transcript

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
CONFIGS = ("recall", "rag", "rerank", "icl")
NAMES = {"ruler_niah_mk_2": "niah_multikey_2", "ruler_niah_mk_3": "niah_multikey_3", "ruler_niah_mv": "niah_multivalue"}
NAMES |= {"msmarco_rerank_psg": "msmarco", "kilt_popqa_3": "popqa"}
HUB = {"CogComp/trec": "trec", "PolyAI/banking77": "banking77", "clinc_oos": "clinic150"}
ROW_NAMES = {"json_kv": "question", "ruler": "query"}
"""What tells rows apart that the official code shuffles: in all others the order is that of the file, or drawn."""


def place_of(table: Sequence[Any], field: str) -> Callable[[Any], int]:
    """The place of a row in a table, told by a field."""
    values = [row[field] for row in table]
    return lambda row: values.index(row[field])


class Model(Recorder):
    """The model behind `HFModel`."""

    def __init__(self, ends: Sequence[int]) -> None:
        super().__init__()
        self.generation_config = types.SimpleNamespace(eos_token_id=list(ends))

    def generate(self, input_ids: Any, **options: Any) -> Any:
        return {"sequences": super().generate(input_ids, **options)}


class Program:
    """eval.py of a copy of HELMET's checkout."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        empty("pytrec_eval")
        for path in (*checkout.glob("*.py"), *checkout.glob("*/*.py"), *checkout.glob("**/configs/*.yaml")):
            target = folder / path.relative_to(checkout)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        self.eval: Any = load(folder / "eval.py", "helmet_eval")
        self.eval.logger.disabled = True
        self.load_data: Callable[..., Any] = self.eval.load_data
        self.eval.load_data = self.remember

    def remember(self, *arguments: Any) -> Any:
        """The rows that are recorded, in the order of the file where the official code shuffles them."""
        loaded = self.load_data(*arguments)
        self.rows = sorted(loaded["data"], key=self.order or (lambda _: 0))[:SAMPLES]
        return loaded | {"data": self.rows}

    def run(
        self, config: Path, place: int, family: str, template: str, order: Callable[[Any], int] | None = None
    ) -> Iterator[Transcript]:
        """What is asked for each row of the data set at a place of a config. order: of the rows in its file."""
        import transformers

        self.order = order
        tok, entries = tokenizer(family, template), yaml.safe_load(config.read_text("utf-8"))
        model = Model(model_ends(tok))
        values = {"AutoTokenizer": tok, "AutoModelForCausalLM": model, "AutoConfig": types.SimpleNamespace()}
        for name, value in values.items():
            loader = types.SimpleNamespace(from_pretrained=lambda *_, value=value, **__: value)
            setattr(transformers, name, loader)
        lists = "datasets", "test_files", "demo_files", "input_max_length", "generation_max_length"
        chosen = {name: (str(entries[name]).split(",") * (place + 1))[place] for name in lists}
        with TemporaryDirectory() as out:
            sys.argv = ["eval.py", "--config", str(config), "--no_cuda", "--no_torch_compile", "--num_workers", "0"]
            sys.argv += ["--model_name_or_path", MODEL, "--output_dir", out]
            sys.argv += [word for name, text in chosen.items() for word in (f"--{name}", text)]
            self.eval.main()
        assert len(model.asked) == len(self.rows)
        for asked in model.asked:
            stop = None if sorted(asked["eos_token_id"]) == sorted(model_ends(tok)) else asked["eos_token_id"]
            least = asked["min_new_tokens"]
            yield transcript(asked["ids"], None, stop, asked["max_new_tokens"], least)


def transcripts(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """The first rows of every task, at 8192 tokens."""
    from datasets import ClassLabel, Dataset  # type: ignore[import-not-found]

    with TemporaryDirectory() as folder:
        program = Program(checkout, Path(folder))
        (Path(folder) / "data").symlink_to(root / "helmet")

        def load_dataset(path: str, *arguments: Any, trust_remote_code: bool = False, **options: Any) -> Any:
            if path == "json":
                return from_files(path, *arguments, **options)
            name = HUB.get(path, "nlu")
            splits = {"train": "train", "test": "test", "validation": "test"}
            if name == "nlu":
                names = {"train": "helmet_nlu/train.jsonl"}
            else:
                names = {split: f"helmet_icl/{name}_{file}.jsonl" for split, file in splits.items()}
            made = {split: Dataset.from_list(rows(root / file)) for split, file in names.items()}
            for split, table in made.items():
                for column in set(table.column_names) - {"text"}:
                    most = {"coarse_label": 6}.get(column, helmet_rows.CLASSES[name])
                    made[split] = made[split].cast_column(column, ClassLabel(names=list(map(str, range(most)))))
            return made

        data = sys.modules["data"]
        from_files, data.load_dataset = data.load_dataset, load_dataset  # type: ignore[attr-defined]
        mapped = Dataset.map

        def of_recorded(table: Any, *arguments: Any, num_proc: int | None = None, **options: Any) -> Any:
            """Only the prompts of in-context learning, which are long, are made by several processes."""
            return mapped(table.select(range(SAMPLES)) if num_proc else table, *arguments, **options)

        Dataset.map = of_recorded  # type: ignore[method-assign]
        for config in (Path(folder) / "configs" / f"{name}_short.yaml" for name in CONFIGS):
            entries = yaml.safe_load(config.read_text("utf-8"))
            for place, length in enumerate(str(entries["input_max_length"]).split(",")):
                if length != "8192":
                    continue
                name = entries["datasets"].split(",")[place]
                member = NAMES.get(name) or re.sub(r"^(icl|kilt)_|_\d+shot_balance$", "", name)
                for family in FAMILIES:
                    order = None
                    if key := ROW_NAMES.get(name.partition("_niah")[0]):
                        order = place_of(rows(Path(folder) / entries["test_files"].split(",")[place]), key)
                    for number, record in enumerate(program.run(config, place, family, "raw", order)):
                        yield case(f"helmet/{member}", family, "raw", number), record


def longproc(checkout: Path, root: Path, code: Path) -> Iterator[tuple[str, Transcript]]:
    """The first rows of every data set. code: LongProc's checkout."""
    with TemporaryDirectory() as folder:
        program = Program(checkout, Path(folder))
        inner = Path(folder) / "longproc_addon" / "longproc"
        shutil.copytree(code / "longproc", inner / "longproc")
        longproc_rows.write(inner / "data", official=True)
        longproc_data: Any = import_module("longproc_addon.longproc.longproc.longproc_data")
        for config in sorted((Path(folder) / "longproc_addon" / "configs").glob("*.yaml")):
            for place, name in enumerate(yaml.safe_load(config.read_text("utf-8"))["datasets"].split(",")):
                if name not in members("longproc"):
                    continue
                loaded, _ = longproc_data.load_longproc_data(name, inner / "data")
                order = place_of(loaded, "input_prompt")
                for family in FAMILIES:
                    for template in ("chatml", "trimmed"):
                        recorded = program.run(config, place, family, template, order)
                        for number, record in enumerate(recorded):
                            yield case(f"longproc/{name}", family, template, number), record
