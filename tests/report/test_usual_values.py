"""What the headers of tables and plots say of labels that leave out the usual value of a swept setting."""

import pytest

from kvbench.records import ResultsFolder
from kvbench.report.plots.plot import figure
from kvbench.report.tables.means import means_table
from kvbench.report.tables.pivot import arrange
from kvbench.report.tables.summary import summaries
from kvbench.report.tables.usual_values import usual_values
from tests.cells import name_of

FADED = {"name": "faded", "half_life": 64}
SNAPKV = {"name": "snapkv", "window": 32, "layers": {"kind": "uniform"}, "accepts": ["budget"]}


@pytest.mark.parametrize(
    ("group", "labels", "said"),
    [
        ("score", {"faded": FADED, "faded half_life=32": FADED}, ["faded has half_life=64"]),
        ("score", {"faded": FADED, "fading half_life=32": FADED}, []),
        ("score", {"faded half_life=16": FADED, "faded half_life=32": FADED}, []),
        ("score", {"faded": {}, "faded half_life=32": FADED}, []),
        (
            "policy",
            {"snapkv": SNAPKV, "snapkv window=16 layers=pyramid layers.beta=5": {}},
            ["snapkv has layers=uniform"],
        ),
        ("policy", {"snapkv": SNAPKV, "snapkv store=int8 store.group=32": {}}, []),
    ],
)
def test_a_label_without_a_swept_setting_has_the_value_of_its_cell(group: str, labels: dict, said: list[str]) -> None:
    described = {label: {group: settings} for label, settings in labels.items()}
    assert usual_values(group, {label: label for label in labels}, described.get) == said
    assert usual_values(group, dict.fromkeys(labels), described.get) == []


def test_the_header_of_a_table_says_it_and_its_lines_keep_their_labels(cell) -> None:
    rows = cell([1.0], score="faded", cell="a") + cell([0.0], score="faded half_life=32", cell="b")
    parts = {"a": FADED, "b": FADED | {"half_life": 32}}
    cells = {name: {"policy": SNAPKV, "score": score} for name, score in parts.items()}
    (block,) = arrange(summaries(rows), describe=cells.get)
    table = means_table(block, cells.get)
    assert table.caption[-1] == "window 32 where a policy has them; faded has half_life=64"
    assert "Window 32 where a policy has them; faded has half_life=64" in table.words
    assert [line.labels[1] for line in table.lines] == ["faded", "faded half_life=32"]


def test_the_heading_of_a_plot_says_it(cell, results) -> None:
    scores = {name_of({"score": score}): score for score in (FADED, FADED | {"half_life": 32})}
    labels = ("faded", "faded half_life=32")
    folder = results(
        *(cell([1.0], score=label, cell=name, kept_fraction=0.1) for name, label in zip(scores, labels, strict=True))
    )
    for score in scores.values():
        ResultsFolder(folder).write_cell(name_of({"score": score}), {"score": score})
    for kind in ("tradeoff", "bars"):
        heading = " ".join(text.get_text() for text in figure(kind, folder).texts)
        assert "faded has half_life=64" in heading and "half_life=32 has" not in heading
