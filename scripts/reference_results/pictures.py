"""The figures of README and docs that show measured means: each is drawn from committed rows alone.

At least 20 samples stand behind every mean.
"""

from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from reference_results.pack import BUDGETS
from reference_results.sweeps import REFERENCE, TOP

IMAGES = TOP / "docs" / "images"
LARGEST = 150_000
"""Bytes; larger pictures get 256 colours, a third of the bytes."""
FIVE = {"policy": "full,streaming_llm,h2o,snapkv,tova", "score": "null,attn,obcache_joint"}
PICTURES: Mapping[str, tuple[str, Path, Mapping[str, str]]] = {
    "reference-tradeoff.png": (
        "tradeoff",
        REFERENCE / "main.parquet",
        {
            "budget": ",".join(BUDGETS),
            "score": "null,attn,lava,cake,kvzip",
            "policy": "full,streaming_llm,h2o,tova,snapkv,ada_snapkv,pyramidkv,cake,lava,kvzip",
        },
    ),
    "tradeoff.png": ("tradeoff", REFERENCE / "main.parquet", FIVE | {"budget": ",".join(BUDGETS)}),
    "bars.png": (
        "bars",
        REFERENCE / "main.parquet",
        FIVE | {"budget": "0.2,0.4,1.0", "task": "ruler/niah_single_1,ruler/fwe"},
    ),
    "kept.png": ("kept", REFERENCE / "kept", {"score": "null,attn"}),
    "split.png": ("split", REFERENCE / "kept", {"policy": "snapkv*"}),
}
"""The kind, the rows and the settings of each picture, as of `kvbench report plot`."""
PROBED: Mapping[str, tuple[Path, tuple[str, ...]]] = {
    "probe-oracle-recall.png": (REFERENCE / "probes" / "oracle_recall.parquet", ("recent", "window")),
    "probe-head-scores.png": (REFERENCE / "probes" / "head_scores.parquet", ("layer", "head")),
}
"""The numbers of each picture of a probe, and the columns that it keeps apart."""


def draw_all(folder: Path) -> None:
    """Draw every picture into a folder."""
    import pyarrow.parquet as parquet

    from kvbench.report.plots.plot import plot
    from kvbench.report.plots.probe import draw_probed

    for name, (kind, rows, settings) in PICTURES.items():
        plot(kind, rows, folder / name, settings, print)
    for name, (numbers, by) in PROBED.items():
        draw_probed(parquet.read_table(numbers), by, folder / name)
    for file in (folder / name for name in PICTURES):
        if file.stat().st_size > LARGEST:
            with Image.open(file) as image:
                image.convert("RGB").quantize(256).save(file, optimize=True)
