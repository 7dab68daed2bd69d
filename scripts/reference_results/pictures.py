"""The figures of README and docs that show measured means: each is drawn from committed rows alone.

At least 20 samples stand behind every mean; a square of a heat map is one prompt, a figure of comparisons says n in
every line.
"""

from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from reference_results.forest import draw_claims, draw_forest
from reference_results.sweeps import REFERENCE, TOP, row_set

IMAGES = TOP / "docs" / "images"
LARGEST = 150_000
"""Bytes; larger pictures get 256 colours, a third of the bytes."""
BUDGETS = row_set("reference").tables["table"]["budget"]
FIVE = {"policy": "full,streaming_llm,h2o_obcache,snapkv@common,tova_obcache", "score": "null,attn,obcache_joint"}
PICTURES: Mapping[str, tuple[str, Path, Mapping[str, str]]] = {
    "reference-tradeoff.png": (
        "tradeoff",
        REFERENCE / "main.parquet",
        {
            "budget": ",".join(BUDGETS),
            "score": "null,attn,lava,cake,kvzip",
            "policy": "full,streaming_llm,h2o_obcache,tova_obcache,snapkv@common,ada_snapkv@common,pyramidkv@common,"
            "cake@common,lava@common,kvzip",
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
    "smollm2-needle.png": (
        "needle",
        TOP / "results" / "smollm2" / "needle.parquet",
        {"policy": "full,streaming_llm,h2o_obcache,snapkv@common,tova_obcache,cake@common", "score": "null,attn,cake"},
    ),
}
"""The kind, the rows and the settings of each picture, as of `kvbench report plot`."""
PROBED: Mapping[str, tuple[Path, tuple[str, ...]]] = {
    "probe-oracle-recall.png": (REFERENCE / "probes" / "oracle_recall.parquet", ("recent", "window")),
    "probe-head-scores.png": (REFERENCE / "probes" / "head_scores.parquet", ("layer", "head")),
}
"""The numbers of each picture of a probe, and the columns that it keeps apart."""


FORESTS: Mapping[str, tuple[Path, tuple[str, ...]]] = {
    "smollm2-claims.png": (
        TOP / "docs" / "reference" / "smollm2-claims.md",
        (
            "The newest tokens, at equal bytes",
            "OBCache: the joint score against attention",
            "CAOTE and FastCAOTE over their hosts",
            "LAVa: dynamic heads, dynamic layers; other allocations",
            "KVzip: query-aware and query-agnostic",
            "Settings that decide",
        ),
    ),
}
"""The page of each picture of comparisons, and its headings that the picture shows."""
CLAIMED: Mapping[str, Path] = {"confirmed-claims.png": TOP / "results" / "confirm"}
"""The claims of each picture, with their rows."""


def draw_all(folder: Path) -> None:
    """Draw every picture into a folder."""
    import pyarrow.parquet as parquet

    from kvbench.extras.probes.plot import draw_probed
    from kvbench.report.plots.plot import plot

    for name, (kind, rows, settings) in PICTURES.items():
        plot(kind, rows, folder / name, settings, print)
    for name, (numbers, by) in PROBED.items():
        draw_probed(parquet.read_table(numbers), by, folder / name)
    for name, (page, sections) in FORESTS.items():
        draw_forest(page, folder / name, sections)
    for name, claims in CLAIMED.items():
        draw_claims(claims, folder / name)
    for file in (folder / name for name in (*PICTURES, *FORESTS, *CLAIMED)):
        if file.stat().st_size > LARGEST:
            with Image.open(file) as image:
                image.convert("RGB").quantize(256).save(file, optimize=True)
