"""Train, resume, measure and export the embedded reference model.

    python scripts/train_reference_model.py --out RUN --books FOLDER --start-from MODEL   # train; resumes after a kill
    python scripts/train_reference_model.py --out RUN --export FOLDER    # measure; write weights, tokenizer, model card
    python scripts/train_reference_model.py --evaluate FOLDER            # print the measured figures

MODEL is a folder of smaller weights, which grow first; without it training begins with random ones. Stages that have
not begun may be edited in the plan between two runs. Needs torch, transformers, tokenizers, pydantic and numpy;
wonderwords only where the training folder has no words.json and no --words is given.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path

from reference_model.curriculum import PLAN, Plan
from reference_model.network import Shape
from reference_model.words import load_words

SIZES = [field for field in fields(Shape) if field.name not in ("vocabulary", "theta")]


def main(line: Sequence[str] | None = None) -> None:
    """Parse a command line, by default the process's own, and do one of the three things."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="training folder: words, tokenizer, checkpoint, curve")
    parser.add_argument("--words", type=Path, help="word lists (json) where wonderwords is not installed")
    parser.add_argument(
        "--books",
        type=Path,
        help="folder of .txt books: two of three are read for tokenizer, haystacks and language modelling",
    )
    parser.add_argument("--start-from", type=Path, help="a model folder whose tokenizer and weights grow")
    parser.add_argument(
        "--suppression-layer", type=int, help="the place of a new layer that begins as copy suppression (0: the first)"
    )
    parser.add_argument("--export", type=Path, help="write the model folder and stop")
    parser.add_argument("--evaluate", type=Path, help="measure a model folder and stop")
    parser.add_argument(
        "--data", type=Path, help="folder of essays and pg19 books to measure on, as kvbench's data.root"
    )
    parser.add_argument("--into", type=Path, default=Path("figures.jsonl"), help="file of what --evaluate measured")
    parser.add_argument("--samples", type=int, default=200, help="samples a figure")
    parser.add_argument("--plan", type=Path, default=PLAN, help="stages (json)")
    parser.add_argument("--vocabulary", type=int, default=1656, help="of a new tokenizer")
    for size in SIZES:
        parser.add_argument(f"--{size.name.replace('_', '-')}", type=int, default=size.default)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="two on a machine with other work are slower than one")
    parser.add_argument("--compile", action="store_true", help="compile layers: a minute for each shape, then faster")
    parser.add_argument("--max-steps", type=int, help="stop (resumable) at this step")
    parser.add_argument("--save-seconds", type=float, default=60.0)
    arguments = parser.parse_args(line)
    if arguments.evaluate:
        from reference_model.evaluation import measure

        measure(arguments.evaluate, arguments.samples, arguments.into, arguments.data, arguments.device)
    elif arguments.out is None:
        parser.error("--out FOLDER is needed to train or export")
    elif arguments.suppression_layer is not None and arguments.start_from is None:
        parser.error("--suppression-layer needs --start-from MODEL: a layer is put between trained ones")
    elif arguments.export:
        from reference_model.export import export

        export(arguments.out, arguments.export, arguments.samples, arguments.data, arguments.device)
    else:
        train(arguments)


def train(arguments: argparse.Namespace) -> None:
    """Train in the folder `--out`, from the start or from its checkpoint."""
    import torch
    from reference_model.data import Source
    from reference_model.families import Families
    from reference_model.growth import start_from
    from reference_model.network import TrainingLlama
    from reference_model.perplexity import held_back
    from reference_model.suppression import suppress
    from reference_model.tokenizer import grow_tokenizer, load_tokenizer, train_tokenizer
    from reference_model.trainer import Settings, Trainer

    torch.set_num_threads(arguments.threads)
    out, words = arguments.out, load_words(arguments.out, arguments.words)
    names, books = read_books(arguments.books)
    if arguments.start_from and not (out / "tokenizer.json").exists():
        grow_tokenizer(arguments.start_from, out)
    if not (out / "tokenizer.json").exists():
        train_tokenizer(words, books, arguments.vocabulary).save_pretrained(out)
    tokenizer, plan = load_tokenizer(out), Plan.read(arguments.plan)
    settings = Settings(arguments.seed, arguments.device, arguments.compile, save_seconds=arguments.save_seconds)
    shape = Shape(len(tokenizer), **{size.name: getattr(arguments, size.name) for size in SIZES})
    model = TrainingLlama(shape, arguments.seed)
    begun, place = None, arguments.suppression_layer
    if arguments.start_from:
        begun = start_from(arguments.start_from, model, () if place is None else {place})
    described = {
        "settings": vars(arguments),
        "shape": asdict(shape),
        "plan": [stage.model_dump() for stage in plan.stages],
        "books": hashes(names, books),
        "held_back": hashes(*held_back(arguments.books)) if arguments.books else {},
        "started_from_sha256": begun,
        "parameters": sum(weight.numel() for weight in model.parameters()),
    }
    (out / "run.json").write_text(json.dumps(described, default=str, indent=1), encoding="utf-8")
    source = Source(
        lambda text: tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids,
        len(tokenizer),
        *words.trained,
        books,
    )
    if place is not None and not (out / "checkpoint.pt").exists():
        suppress(model, place, Families(source))
    trainer = Trainer(out, settings, plan, source, model)
    done = trainer.run(arguments.max_steps)
    print(
        f"{'finished' if done else 'stopped'} at step {trainer.step}, {trainer.tokens} tokens, {trainer.seconds:.0f} s"
    )


def hashes(names: list[str], texts: list[str]) -> dict[str, str]:
    """SHA-256 of each book's text."""
    return {name: sha256(text.encode()).hexdigest() for name, text in zip(names, texts, strict=True)}


def read_books(folder: Path | None) -> tuple[list[str], list[str]]:
    """Two of three books by name (every third one is held back), line ends normalised."""
    files = [file for index, file in enumerate(sorted(folder.glob("*.txt"))) if index % 3 != 2] if folder else []
    if folder and not files:
        raise ValueError(f"--books={folder} holds no .txt file")
    return [file.name for file in files], [file.read_text(encoding="utf-8").replace("\r\n", "\n") for file in files]


if __name__ == "__main__":
    main()
