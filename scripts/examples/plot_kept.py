"""Which KV pairs are kept of one prompt: a run that records positions, read back and drawn.

    python scripts/examples/plot_kept.py [kept.png]

`kvbench report plot kept` draws the same as small multiples; this is a start for your own pictures.
"""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from matplotlib.figure import Figure

from kvbench.cli.main import main as kvbench
from kvbench.records import KeptSets, read_kept, read_rows

POLICIES = ("streaming_llm", "h2o", "snapkv", "ada_snapkv")
RUN = f"run policy={','.join(POLICIES)} score=attn budget=0.1 task.samples=1 task.max_new_tokens=12 reference=none"


def main(arguments: Sequence[str] = ()) -> None:
    """Run four policies on one prompt, say what each kept, and draw it."""
    out = Path(arguments[0] if arguments else "kept.png").resolve()
    with TemporaryDirectory() as folder:
        with redirect_stdout(StringIO()):  # the table that a run prints
            code = kvbench([*RUN.split(), "results.kept=positions", f"results.dir={folder}"])
        assert code == 0, f"kvbench run ended with {code}"
        rows = {row.policy: row for row in read_rows(folder)}
        kept = read_kept(folder)
    figure = Figure(figsize=(7, 1.3 * len(POLICIES)), layout="constrained")
    axes = figure.subplots(len(POLICIES), sharex=True, squeeze=False)[:, 0]
    for axis, policy in zip(axes, POLICIES, strict=True):
        row = rows[policy]
        sets = kept[row.cell, row.sample]
        picture = masks(sets)
        verdict = "right" if row.value else "wrong"
        axis.imshow(picture, aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="none")
        axis.set_title(f"{policy}: answer {verdict}", fontsize=9, loc="left")
        axis.set_ylabel("KV heads", fontsize=8)
        axis.set_yticks([])
        lengths = [length for layer in sets.lengths for length in layer]
        everywhere = int((picture.mean(axis=0) == 1).sum())
        print(
            f"{policy:13} {min(lengths)} to {max(lengths)} of {sets.num_tokens} pairs per head, "
            f"{everywhere} positions in all heads; answer {verdict}"
        )
    axes[-1].set_xlabel(
        "position in one prompt of ruler/niah_single_1, 1024 tokens; budget 0.1, score attn; black: kept"
    )
    figure.savefig(out, dpi=120)
    print(f"drawn: {out.name}")


def masks(sets: KeptSets) -> np.ndarray:
    """[heads of all layers, positions]: 1 where a KV pair was kept."""
    by_layer = zip(sets.layers, sets.lengths, strict=True)
    heads = [(layer, head) for layer, lengths in by_layer for head in range(len(lengths))]
    picture = np.zeros((len(heads), sets.num_tokens))
    for line, (layer, head) in enumerate(heads):
        picture[line, sets.positions(layer, head)] = 1
    return picture


if __name__ == "__main__":
    main(sys.argv[1:])
