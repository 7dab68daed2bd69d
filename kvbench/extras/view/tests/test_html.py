"""The page: data that cannot become markup, nothing from a network, and in a real browser a table that is there."""

import base64
import html
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from urllib.parse import parse_qs
from xml.etree import ElementTree

import numpy as np
import pytest

from kvbench.cli.main import main
from kvbench.extras.view import history
from kvbench.extras.view.history import names, runs_of, write_history
from kvbench.extras.view.page import page_of, write_page
from kvbench.extras.view.rendered import embedded
from kvbench.extras.view.shown_samples import readable_places
from kvbench.records import KeptSets, PromptRecord, Recorder, ResultsFolder
from kvbench.records.manifest import write_manifest
from kvbench.report.colours import looks
from kvbench.report.compare.paired_rows import side
from kvbench.report.formats.html import template
from kvbench.run.cell import canonical, digest
from tests.browser import browser, dom_of

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\u2028&amp;"


@pytest.fixture
def folder(tmp_path, cell):
    """Two cells of three samples; one answer failed, and everything that is text is hostile."""
    results = tmp_path / "results"
    rows = [
        *cell([1.0, 0.0, 1.0, HOSTILE], cell="a1", prediction=HOSTILE, prompt_sha256="ab", kept_fraction=0.1),
        *cell([1.0, 0.0, 1.0], HOSTILE, cell="b2", prediction=HOSTILE, prompt_sha256="ab", kept_fraction=0.1),
    ]
    kept = KeptSets("a1", 1, 12, (0,), ((3, 2),), ((bytes([0b10100000, 0b00010000]), bytes([0b11000000, 0])),))
    with Recorder(results) as recorder:
        beside = {
            "kept": [kept.to_json()],
            "prompts": [PromptRecord.of("ab", "?" * 900 + HOSTILE, (HOSTILE,)).to_json()],
        }
        recorder.append(rows, beside)
    environment = {"python": "3.11", "packages": {"torch": "2"}, "HF_TOKEN": "hf_secret", "device": {"name": HOSTILE}}
    ResultsFolder(results).write_environment(environment)
    return results


def silent(text):
    raise AssertionError(text)


def written(folder, *cells, **beside):
    """The page of the results in a folder, with the rows of these cells and lines beside them."""
    with Recorder(folder / "results") as recorder:
        recorder.append([row for rows in cells for row in rows], beside)
    page = folder / "page.html"
    write_page(folder / "results", page, silent)
    return page


def test_samples_are_the_failed_and_the_worst_first(folder):
    page = page_of(folder, silent, samples=2)
    assert [entry["sample"] for entry in page.samples["a1"]] == [3, 1]
    assert (page.rows, page.shown) == (7, 4)
    assert page.samples["a1"][0]["error"] == HOSTILE
    prompt = page.prompts[page.samples["a1"][1]["prompt"]]
    assert prompt["references"] == [HOSTILE]
    assert prompt["tail"].endswith(HOSTILE) and len(prompt["tail"]) == 600
    (entry,) = [entry for entry in page_of(folder, silent).samples["a1"] if entry["kept"]]
    shares = base64.b64decode(entry["kept"])  # by position
    assert len(shares) == entry["seen"] == 12 and [*shares[:4], shares[11]] == [255, 128, 128, 0, 128]


def test_cells_show_the_same_samples_and_of_a_long_prompt_its_ends_and_the_answers(results, cell):
    """The worst over both cells come first: 2 (0 and 0), 1 (0 and 1), 0 (1 and 1)."""
    folder = results(cell([1.0, 0.0, 0.0], cell="a1"), cell([1.0, 1.0, 0.0], "h2o", cell="b2"))
    page = page_of(folder, silent, samples=2)
    assert [[s["sample"] for s in page.samples[name]] for name in ("a1", "b2")] == [[2, 1], [2, 1]]
    places = readable_places([" x"] * 3000 + [" need", "le"] + [" x"] * 3000, ["needle"])
    assert places[:400] == list(range(400)) and places[-400:] == list(range(5602, 6002))
    assert {3000, 3001} <= set(places) and places.count(None) == 2 and len(places) < 1000
    assert readable_places(["a", "b"], ["b"]) == [0, 1]


def test_the_page_asks_no_network_and_says_no_secret(folder, tmp_path):
    text = written(tmp_path).read_text()
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert "default-src 'none'" in own
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|\bhref=|@import|url\(", own.split('<script id="data"')[0])
    assert "hf_secret" not in text and "HF_TOKEN" not in text
    assert "document.title=" not in own.replace("\\u003c", "<").split('<script id="data"')[0]
    data = embedded({"a": HOSTILE})
    assert not set("<>&\u2028") & set(data) and json.loads(data) == {"a": HOSTILE}


def test_a_page_cites_the_manifest_of_its_folder_if_it_is_true(folder, tmp_path, cell):
    def end_of_page(warn=silent):
        write_page(folder, tmp_path / "page.html", warn)
        return (tmp_path / "page.html").read_text().rpartition("<footer>")[2].partition("</footer>")[0]

    assert "manifest" not in end_of_page()
    manifest = write_manifest(ResultsFolder(folder), None)
    assert f"a folder with {manifest}, which" in end_of_page()
    with Recorder(folder) as recorder:
        recorder.append(cell([1.0], cell="c3"))
    told = []
    assert "manifest" not in end_of_page(told.append) and "not cited" in told[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "page.txt"], "allowed: a file name that ends in .html"),
        ([], "arguments are required: --out"),
        (["--out", "page.html", "samples=many"], "samples=many"),
    ],
    ids=["suffix", "no_file", "samples"],
)
def test_bad_arguments_are_refused(folder, capsys, arguments, message):
    assert main(["report", "html", "--results", str(folder), *arguments]) == 2
    assert message in capsys.readouterr().err


def shown(page, *choose, script=""):
    """The document after its scripts; `script` runs after them in the page, as a reader's clicks would."""
    if script:
        drawn = f"<script>plotly.then(() => {{ {script} }});</script></body>"  # when the charts are there
        page.write_text(page.read_text().replace("</body>", drawn))
    return dom_of(f"file://{page}#{','.join(choose)}", page.parent / "profile")


def names_in(dom):
    """The names at the ends of lines, by panel."""
    panels = re.findall(r"<figure.*?</figure>", dom, flags=re.S)
    texts = [re.findall(r'class="annotation-text"[^>]*>(.*?)</text>', panel) for panel in panels]
    names = [[re.sub("<[^>]*>", "", text) for text in panel] for panel in texts]
    return [[name.partition(" ")[2] for name in panel] for panel in names]  # each begins with its marker


@browser
def test_a_browser_shows_the_cells_and_runs_no_text_of_a_model(folder, tmp_path):
    page = tmp_path / "page.html"
    assert main(["report", "html", "--results", str(folder), "--out", str(page)]) == 0
    dom = shown(page, "a1")
    assert "<title>kvbench: ruler/niah_single_1</title>" in dom
    assert len(re.findall(r"<tr[^>]*tabindex", dom)) == 2
    assert dom.count('class="sample"') == 4
    assert "&lt;/script&gt;&lt;script&gt;" in dom and "<img" not in dom.split('id="drill"')[1]
    assert "scatterlayer" in dom and "<canvas" in dom


@browser
def test_cells_of_another_n_are_no_part_of_a_curve(tmp_path, cell):
    """Budgets 0.1 and 0.2 over 4 samples are one curve; 0.4 over 2 is another, and its name says so."""
    curves = {"0.1": [0.0] * 4, "0.2": [1.0] * 4, "0.4": [1.0] * 2}
    cells = (cell(values, budget=budget, kept_fraction=float(budget)) for budget, values in curves.items())
    page = written(tmp_path, *cells)
    assert "decode_seconds" not in re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S)
    dom = shown(page)
    assert names_in(dom) == [["snapkv attn", "snapkv attn (n = 2)"]]
    assert "n = 4 samples; small marks: another n" in dom
    assert len(re.findall(r'class="trace scatter', dom)) == 4  # a line and its marks
    leaders = re.findall(r'<path data-index="\d+"[^>]*style="([^"]*)"', dom)
    assert len(leaders) == 2 and all("rgb(154, 161, 169)" in style for style in leaders), "leaders are no data"


@pytest.fixture
def many(tmp_path, cell):
    """Three policies, two tasks and three budgets, on a page."""
    cells = [
        cell([1.0, 0.0], policy, task=task, budget=budget, kept_fraction=float(budget))
        for task in ("ruler/vt", "ruler/fwe")
        for policy in ("snapkv", "ada_snapkv", "h2o")
        for budget in ("0.1", "0.2", "0.15")
    ]
    return written(tmp_path, *cells)


def rows_in(dom):
    body = dom.split("<tbody>")[1].split("</tbody>")[0]
    return [
        tuple(re.sub("<svg.*?</svg>|<[^>]*>", "", cell) for cell in re.findall("<td.*?</td>", row)[:4])
        for row in body.split("</tr>")[:-1]
    ]


@browser
@pytest.mark.parametrize(
    ("word", "methods"),
    [
        ("snap 0.2", {("snapkv", "0.2"), ("ada_snapkv", "0.2")}),
        *(
            pytest.param(word, methods, marks=pytest.mark.slow)
            for word, methods in (
                ("snapkv 0.1", {("snapkv", "0.1")}),
                ("0.1 SNAPKV", {("snapkv", "0.1")}),
                ("nothing", set()),
            )
        ),
    ],
)
def test_a_word_that_is_a_whole_value_finds_exactly_that(many, word, methods):
    dom = shown(many, script=f'by("filter").value = "{word}"; by("filter").oninput();')
    assert {(policy, budget) for _, policy, _, budget in rows_in(dom)} == methods
    assert len(rows_in(dom)) == 2 * len(methods)
    assert {name for panel in names_in(dom) for name in panel} == {f"{policy} attn" for policy, _ in methods}


@browser
def test_facets_drive_charts_and_table_together(many):
    dom = shown(many)
    assert len(rows_in(dom)) == 18 and len(names_in(dom)) == 2
    assert re.findall(r"<summary><span>(\w+)", dom.split('id="facets"')[1].split('id="reset"')[0]) == [
        "task",
        "policy",
        "budget",
    ]
    choose = """for (const box of document.querySelectorAll("details.facet")) {
        box.open = true; box.ontoggle();
        for (const line of box.querySelectorAll("label")) {
            const name = line.querySelector("span").textContent;
            if (["ruler/vt", "h2o", "ada_snapkv"].includes(name)) line.querySelector("input").click();
        }
    }"""
    dom = shown(many, script=choose)
    assert {(task, policy) for task, policy, *_ in rows_in(dom)} == {("ruler/vt", "h2o"), ("ruler/vt", "ada_snapkv")}
    assert names_in(dom) == [["ada_snapkv attn", "h2o attn"]] and "6 of 18 cells" in dom
    for policy in ("ada_snapkv", "h2o"):  # as in all figures
        assert f"stroke: rgb{tuple(bytes.fromhex(looks([policy])[policy].colour[1:]))}" in dom


@browser
@pytest.mark.slow
def test_of_many_lines_the_best_and_the_chosen_are_in_colour(tmp_path, cell):
    """Line i is right in i of 12 samples; lines 7 to 11 are the five best, and 2 is chosen."""
    usual = {"score": None, "kept_fraction": 0.1}
    cells = [cell([1.0] * i + [0.0] * (12 - i), f"policy_{i}", cell=f"c{i}", **usual) for i in range(12)]
    dom = shown(written(tmp_path, *cells), "c2")
    assert sorted(names_in(dom)[0]) == sorted(f"policy_{i}" for i in (2, 7, 8, 9, 10, 11))
    assert "6 lines in grey" in dom and len(re.findall(r'class="trace scatter', dom)) == 1 + 2 * 6


@browser
def test_a_link_opens_the_page_as_it_was_left(many):
    link = "task=ruler%2Fvt&policy=h2o&policy=snapkv&find=0.1&against=kept_tokens&wrong=only"
    name = next(cell for cell in re.findall(r'"cell":"(\w+)"', many.read_text()))
    say = """const said = document.createElement("output");
        said.textContent = location.hash; document.body.append(said);"""
    dom = shown(many, f"{link}&cells={name}", script=say)
    assert {(task, policy, budget) for task, policy, _, budget in rows_in(dom)} == {
        ("ruler/vt", policy, "0.1") for policy in ("h2o", "snapkv")
    }
    address = parse_qs(html.unescape(re.search("<output>#(.*?)</output>", dom)[1]))
    assert address == parse_qs(f"{link}&cells={name}")
    assert dom.count('class="sample"') == 1 and "1 wrong of 2 samples" in dom  # answers are 1 and 0


@browser
@pytest.mark.slow
def test_long_names_leave_the_chart_most_of_its_width(folder, tmp_path):
    page = written(tmp_path)
    measure = """const plot = document.querySelector(".plot"), said = document.createElement("output");
        said.textContent = plot._fullLayout._size.r / plot.clientWidth; document.body.append(said);"""
    dom = shown(page, "cells=a1&wrong=only", script=measure)
    assert 0.1 < float(re.search("<output>(.*?)</output>", dom)[1]) < 0.31
    assert dom.count('class="sample"') == 2  # the failed one, and the one that is 0


def test_a_page_of_110_rows_is_small(tmp_path, cell):
    """With ten prompts of 4000 tokens, of which each row shows what was kept, and the script of the charts."""
    tokens = tuple(f" word{t}" for t in range(4000))
    prompts = [PromptRecord(f"{i:02}", "the end", ("word1 ",), tokens) for i in range(10)]
    rows = [
        replace(row, prompt_sha256=f"{row.sample:02}", prediction="a few words of an answer")
        for i in range(11)
        for row in cell([1.0] * 10, f"policy_{i}", cell=f"c{i}", kept_fraction=0.1)
    ]
    mask = bytes([0b10000000]) * 500
    kept = [KeptSets(row.cell, row.sample, 4000, (0,), ((500,),), ((mask,),)).to_json() for row in rows]
    page = written(tmp_path, rows, kept=kept, prompts=[prompt.to_json() for prompt in prompts])
    assert 600_000 < page.stat().st_size < 1_500_000


LOOKS = """const output = document.createElement("output");
    output.textContent = JSON.stringify([...looksOf(false)].map(([key, look]) => [JSON.parse(key), look]));
    document.body.append(output);"""


@browser
def test_no_two_methods_look_alike(tmp_path, cell):
    """One policy with fourteen scores, two of them with other settings, beside one that has its colour."""
    methods = [("snapkv", f"score_{i}", "prompt") for i in range(14)]
    methods += [("snapkv", "score_0", "decode_every=1"), ("ada_pyramidkv", "score_0", "prompt")]
    cells = (cell([1.0, 0.0], name, score=score, schedule=when, kept_fraction=0.1) for name, score, when in methods)
    drawn = json.loads(re.search("<output>(.*?)</output>", shown(written(tmp_path, *cells), script=LOOKS))[1])
    by_method = {(method[0], method[1], method[4]): tuple(look.values()) for method, look in drawn}
    assert {*by_method} == {*methods} and len({*by_method.values()}) == len(methods)
    colours = {policy: {look[0] for (name, *_), look in by_method.items() if name == policy} for policy, *_ in methods}
    assert all(len(each) == 1 for each in colours.values()), "one colour a policy: markers and dashes tell scores apart"
    usual = looks(["snapkv", "ada_pyramidkv"])
    assert by_method["snapkv", "score_0", "prompt"] == (usual["snapkv"].colour, usual["snapkv"].symbol, "solid")
    assert by_method["ada_pyramidkv", "score_0", "prompt"][1] == usual["ada_pyramidkv"].symbol


@browser
@pytest.mark.parametrize(
    ("metric", "words"), [("string_match_all", ["✗ wrong", "partly right", "✓ right"]), ("nll", [])]
)
def test_only_a_wrong_answer_is_red(tmp_path, cell, metric, words):
    """A value of 0 is the best that a loss can be."""
    page = written(tmp_path, cell([0.0, 0.5, 1.0], cell="a1", metric=metric, new_tokens=2))
    values = re.findall(r'<span class="value ([a-z]*)">(.*?)</span>', shown(page, "a1"))
    kinds = {word: kind for kind, text in values for word in words if text.startswith(word)}
    assert kinds == dict(zip(words, ("bad", "", "good"), strict=True)) if words else kinds == {}
    assert len(values) == 3 and ("bad" in dict(values)) == bool(words)


MEASURE = """const plot = document.querySelector(".plot"), { _size: size, xaxis } = plot._fullLayout;
    const place = (point) => { const at = point.getCTM(); return [at.e, at.f]; };
    const marks = [...plot.querySelectorAll(".scatterlayer .trace")].map((trace) =>
        [trace.__data__[0].trace.name, [...trace.querySelectorAll("path.point")].map(place)]);
    const pieces = plot._fullData.filter((trace) => trace.hoverinfo === "skip").map(({ name, x, y }) => [name, x, y]);
    const across = (x) => (Math.log10(x) - xaxis.range[0]) / (xaxis.range[1] - xaxis.range[0]);
    const wanted = WANTED.map(([x, y]) => [size.l + across(x) * size.w, size.t + (104 - y) / 108 * size.h]);
    const output = document.createElement("output");
    output.textContent = JSON.stringify({ marks, pieces, wanted }); document.body.append(output);"""


@browser
def test_the_chart_of_the_page_moves_no_data(tmp_path, cell):
    """Three equal curves: marks are within half a pixel of their rows' values, and all take turns along the line."""
    points = [(10, 50), (20, 100), (40, 100)]
    policies = ("snapkv", "h2o", "tova")
    cells = [
        cell([1.0, float(mean == 100)], policy, budget=str(kept / 100), kept_fraction=kept / 100)
        for policy in policies
        for kept, mean in points
    ]
    dom = shown(written(tmp_path, *cells), script=MEASURE.replace("WANTED", json.dumps(points)))
    read = json.loads(re.search("<output>(.*?)</output>", dom)[1])
    marks = {name: places for name, places in read["marks"] if places}
    assert {*marks} == {f"{policy} attn" for policy in policies}
    for places in marks.values():
        assert all(math.dist(a, b) < 0.5 for a, b in zip(places, read["wanted"], strict=True))
    assert {name for name, *_ in read["pieces"]} == {*marks}
    for _, xs, ys in read["pieces"]:
        drawn = [(x, y) for x, y in zip(xs, ys, strict=True) if x is not None]
        heights = np.interp(np.log([x for x, _ in drawn]), np.log([x for x, _ in points]), [y for _, y in points])
        assert np.abs(heights - [y for _, y in drawn]).max() < 0.1  # half a pixel is 0.15 points


@browser
def test_two_cells_are_read_side_by_side_with_their_tokens(tmp_path, cell):
    """Six tokens, of which the fourth and fifth hold the answer; a1 keeps the first and the fourth, b2 nothing."""
    tokens = ("The", " magic", " word", " is", " ab", "racadabra.")
    prompt = PromptRecord("ab", "the end", ("abracadabra",), tokens)
    kept = [
        KeptSets(name, 0, 6, (0,), ((count,),), ((bytes([mask]),),))
        for name, count, mask in (("a1", 2, 0b10010000), ("b2", 0, 0))
    ]
    cells = [
        cell([1.0], cell="a1", prompt_sha256="ab", prediction="yes"),
        cell([0.0], "h2o", cell="b2", prompt_sha256="ab", prediction="no"),
    ]
    page = written(tmp_path, *cells, kept=[sets.to_json() for sets in kept], prompts=[prompt.to_json()])
    (sample,) = shown(page, "a1", "b2").split('class="sample"')[1:]
    assert sample.count("<details>") == 1 and "<summary>prompt, its end</summary>" in sample  # folded
    assert "abracadabra</code>" in sample
    for answer, prediction, places in zip(
        sample.split('class="answer"')[1:], ("yes", "no"), ({0, 3}, set()), strict=True
    ):
        assert f"<pre>{prediction}</pre>" in answer
        spans = re.findall(r'<span(?: class="([^"]*)")?([^>]*)>([^<]*)</span>', answer.split('class="tokens"')[1])
        assert [text for *_, text in spans] == [*tokens]
        assert {i for i, (classes, *_) in enumerate(spans) if "gone" not in classes} == places
        assert [i for i, (classes, *_) in enumerate(spans) if "needle" in classes] == [4, 5]


@browser
def test_a_page_of_many_cells_draws_few_things(tmp_path, cell):
    """What a browser needs long for: lines of a table, and traces of a chart."""
    cells = (cell([1.0, 0.0], f"p{i}", cell=f"c{i}", kept_fraction=0.1) for i in range(300))
    dom = shown(written(tmp_path, *cells))
    assert len(rows_in(dom)) == 200 and "show all 300 rows" in dom
    assert len(re.findall(r'class="trace scatter', dom)) == 1 + 2 * 5
    assert int(re.search(r'data-ready="(\d+)"', dom)[1]) > 0


@browser
@pytest.mark.parametrize("kind", ["html", pytest.param("history", marks=pytest.mark.slow)])
def test_nothing_leaves_a_narrow_page(many, tmp_path, kind):
    """In a frame of 390 pixels no box but those that scroll is wider than the frame."""
    page = many
    if kind == "history":
        page = tmp_path / "history.html"
        shutil.copytree(tmp_path / "results", tmp_path / "again")
        write_history([str(tmp_path / "results"), str(tmp_path / "again")], page, silent)
    measure = """const all = [...document.querySelectorAll("body *")];
        const boxes = all.filter((e) => !e.closest(".scroll, pre, .menu"));
        const wide = boxes.filter((e) => e.getBoundingClientRect().right > 391);
        const cellsBox = document.querySelector(".scroll"), seen = [];
        if (document.getElementById("wider")) {
            seen.push(document.getElementById("wider").textContent);
            cellsBox.scrollLeft = 200;
            const method = cellsBox.querySelector("td.method").getBoundingClientRect();
            seen.push(Math.round(method.left - cellsBox.getBoundingClientRect().left));
            seen.push(getComputedStyle(cellsBox.querySelector("td.method"), "::after").content);
        }
        parent.postMessage([innerWidth, wide.map((e) => e.outerHTML.slice(0, 80)).join("|"), ...seen], "*");"""
    page.write_text(page.read_text().replace("</body>", f"<script>{measure}</script></body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<body><iframe src='{page.name}' style='width:390px;height:2000px;border:0'></iframe>"
        "<p id='said'></p><script>onmessage = (e) => { said.textContent = e.data.join(': '); };</script></body>"
    )
    width, wide, *table = re.search(r'<p id="said">(.*?)</p>', shown(frame))[1].split(": ")
    assert (width, wide) == ("390", "")
    if table:  # the method stays while its columns are scrolled, and a hint tells of them
        hint, how, left, score = table
        assert re.fullmatch(r"\d+ more columns at the right", hint) and how.startswith("scroll the table")
        assert left in ("0", "1") and score == '" attn"'


def run_of(folder, cell, values, **columns):
    with Recorder(folder) as recorder:
        recorder.append(cell(values, cache_bytes=10, **columns))
    ResultsFolder(folder).write_environment({"source": {"commit": f"{folder.name}0123456789", "dirty": False}})
    return str(folder)


def test_a_standing_loss_fails_until_it_is_gone(tmp_path, cell):
    """Runs of 60 right answers in 240 are compared with the last good one, and not against each other."""
    good, bad = [1.0] * 240, [1.0] * 60 + [0.0] * 180
    names = {"good": good, "same": good, "bad1": bad, "bad2": bad, "bad3": bad, "back": good, "last": bad}
    sources = [run_of(tmp_path / name, cell, values) for name, values in names.items()]
    runs = runs_of(sources, silent)
    assert [run.status for run in runs] == ["first", "passed", "failed", "failed", "failed", "passed", "failed"]
    assert [run.failing_since for run in runs] == [None, None, 3, 3, 3, None, 7]
    assert [run.baseline for run in runs] == [None, 1, 2, 2, 2, 2, 6]
    assert [run.name for run in runs][:3] == ["good01234", "same01234", "bad101234"]
    name = "reference ruler/niah_single_1 512 snapkv attn 0.1"
    assert [run.numbers[name]["accuracy"] for run in runs] == [100, 100, 25, 25, 25, 100, 25]
    files = [tmp_path / name for name in ("history.html", "history.json", "history.xml")]
    flags = ["--out", str(files[0]), "--json", str(files[1]), "--junit", str(files[2])]
    assert main(["report", "history", *sources[:5], *flags]) == 5
    assert main(["report", "history", *sources[1:3], "--out", str(tmp_path / "two.html"), "--no-fail"]) == 0
    html = re.sub(r"<script.*?</script>", "", files[0].read_text(), flags=re.S)
    assert '<strong class="bad">fails</strong> the gate, as all do since run 3 (bad101234)' in html
    assert "run 5 (bad301234): failed against run 2, failing since run 3 (bad101234)" in html
    listed = json.loads(files[1].read_text())["runs"]
    assert [run["status"] for run in listed] == ["first", "passed", "failed", "failed", "failed"]
    assert [run["failing_since"] for run in listed] == [None, None, 3, 3, 3]
    assert {"number", "status", "failing_since", "commit", "date"} <= set(listed[0])
    assert [len(case.findall("failure")) for case in ElementTree.parse(files[2]).iter("testcase")] == [1, 0, 0, 0, 0]
    assert main(["report", "history", *sources[:6], *flags]) == 0
    root = ElementTree.parse(files[2]).getroot()
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("6", "0", "0"), "mended: green"
    (told, *_) = [case for case in root.iter("testcase") if "bad1" in case.get("name")]
    assert told.findtext("system-out").startswith(
        "failed\nruler/niah_single_1 512 snapkv attn 0.1: worse: 100.0 -> 25.0"
    )
    assert main(["report", "history", "--out", str(files[0])]) == 2


def test_a_drift_fails_against_the_anchor(tmp_path, cell):
    """Seven more of sixty are lost in each run: no run is much worse than the one before it."""
    values = [[0.0] * min(60, 7 * run) + [1.0] * (60 - min(60, 7 * run)) for run in range(4)]
    sources = [run_of(tmp_path / f"run{i}", cell, run) for i, run in enumerate(values)]
    runs = runs_of(sources, silent)
    assert [run.status for run in runs] == ["first", "inconclusive", "failed", "failed"]
    assert "snapkv attn 0.1: against the anchor, run 1: worse: 100.0 -> 76.7" in runs[2].findings[0]
    assert [run.anchor for run in runs_of(sources, silent, "3")] == [None, None, None, 3]
    later = runs_of(sources, silent, sources[1])
    assert [run.status for run in later] == ["first", "inconclusive", "inconclusive", "failed"]
    with pytest.raises(ValueError, match="--anchor 5: allowed: a run as it is named here, or its number, 1 to 4"):
        runs_of(sources, silent, "5")
    page = tmp_path / "history.html"
    write_history(sources, page, silent)
    assert "Anchor: run 1 (run001234)." in page.read_text()


def test_a_cell_that_came_later_has_its_first_run_as_anchor(tmp_path, cell):
    sources = []
    for run in range(4):
        sources.append(run_of(tmp_path / f"run{run}", cell, [1.0] * 50))
        with Recorder(tmp_path / f"run{run}") as recorder:
            recorder.append(cell([0.0] * 7 * run + [1.0] * (50 - 7 * run), budget="0.5") if run else [])
    runs = runs_of(sources, silent)
    assert [run.status for run in runs] == ["first", "inconclusive", "inconclusive", "failed"]
    assert "no such cell" in runs[1].open[0] and not any("no such cell" in text for text in runs[2].open)
    finding, *_ = runs[3].findings or ()
    assert "attn 0.5: against the anchor, run 1 or the first run that has it: worse: 86.0 -> 58.0" in finding


def test_a_small_loss_that_lasts_adds_up(tmp_path, cell):
    """Seven of fifty, 14 points, are no loss beyond chance in any run; five runs of them are one, and the sixth."""
    lost = [0.0] * 7 + [1.0] * 43
    sources = [run_of(tmp_path / f"run{i}", cell, lost if 0 < i < 7 else [1.0] * 50) for i in range(8)]
    runs = runs_of(sources, silent)
    assert [run.status for run in runs] == ["first", *["inconclusive"] * 4, "failed", "failed", "inconclusive"]
    assert runs[5].findings == [
        "ruler/niah_single_1 512 snapkv attn 0.1: losses against the anchor, run 1, add up over the runs"
    ]


def test_a_run_of_few_prompts_cannot_tell_and_does_not_fail(tmp_path, cell, capsys):
    sources = [run_of(tmp_path / f"run{i}", cell, [1.0] * 4) for i in range(2)]
    page, junit = tmp_path / "history.html", tmp_path / "history.xml"
    assert main(["report", "history", *sources, "--out", str(page), "--junit", str(junit)]) == 0
    assert "run 2 (run101234): inconclusive: " in capsys.readouterr().err
    html = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.S)
    assert (
        "run 2 (run101234): inconclusive, against run 1" in html and '<strong class="bad">inconclusive</strong>' in html
    )
    (skipped,) = ElementTree.parse(junit).iter("skipped")
    assert skipped.get("message") == "inconclusive: regression: 4 independent prompts cannot show any loss"


def test_the_change_between_two_runs_is_linked(tmp_path, cell):
    """Where their environments name one repository; a Parquet file has its environment beside it."""
    code = {"commit": "0123456789" * 4, "dirty": False, "repository": "https://example.org/a/b"}
    sources = [run_of(tmp_path / "one", cell, [1.0] * 60, prefill_seconds=1.0)]
    ResultsFolder(tmp_path / "one").write_environment({"source": code})
    for file in (tmp_path / "one" / "environments").glob("*.json"):
        if "repository" not in file.read_text():
            file.unlink()
    table = tmp_path / "two.parquet"
    assert main(["export", "--format", "parquet", "--results", sources[0], "--out", str(table)]) == 0
    newer = {"source": code | {"commit": "f" * 40, "repository": "https://example.org/a/b"}}
    table.with_suffix(".json").write_text(json.dumps(newer))
    page = tmp_path / "history.html"
    write_history([*sources, str(table)], page, silent)
    assert f'<a href="https://example.org/a/b/compare/{"0123456789" * 4}...{"f" * 40}">' in page.read_text()
    newer["source"]["repository"] = "javascript:alert(1)"
    table.with_suffix(".json").write_text(json.dumps(newer))
    write_history([*sources, str(table)], page, silent)
    assert "javascript:alert" not in page.read_text() and "/compare/" not in page.read_text()


def test_a_run_that_takes_longer_or_holds_more_than_noise_fails(tmp_path, cell):
    timed = {"metric": "seconds_per_token", "task": "efficiency", "decode_seconds": 1.0}
    sources = [run_of(tmp_path / f"t{i}", cell, [t] * 4, **timed) for i, t in enumerate((1.0, 1.2, 1.3, 1.21))]
    assert [run.status for run in runs_of(sources, silent)] == ["first", "passed", "passed", "passed"]
    slower = runs_of([*sources, run_of(tmp_path / "slow", cell, [1.6] * 4, **timed)], silent)[-1]
    assert "decoding takes: 1.21 s -> 1.6 s (x1.32, more than the noise of x1.25)" in slower.findings[0]
    whole = [run_of(tmp_path / f"w{t}", cell, [1.0] * 240, prefill_seconds=float(t)) for t in (1, 2, 3)]
    assert [run.status for run in runs_of(whole, silent)] == ["first", "passed", "passed"]
    (found,) = runs_of([whole[0], whole[2]], silent)[1].findings
    assert found == "all rows took: 1 s -> 3 s (x3.00, more than the noise of x2)"
    timed["decode_seconds"] = None
    peaks = (1 << 20, int(1.09 * 2**20), 2 << 20)
    held = [run_of(tmp_path / f"m{i}", cell, [1.0] * 4, peak_bytes=peak, **timed) for i, peak in enumerate(peaks)]
    runs = runs_of(held, silent)
    assert [run.status for run in runs] == ["first", "passed", "failed"]
    name = "reference efficiency 512 snapkv attn 0.1"
    assert runs[-1].findings == [
        f"{what}: 1.09 MiB -> 2.00 MiB (x1.83, more than the noise of x1.1)"
        for what in (f"{name}: the cache holds", "all rows held")
    ]


def test_runs_that_pass_are_one_line_and_their_rows_are_read_once(tmp_path, cell, monkeypatch):
    """But for those of seconds, which `kvbench report cost` sums."""
    sources = [run_of(tmp_path / f"run{i}", cell, [1.0] * 240) for i in range(3)]
    page, read = tmp_path / "history.html", []
    monkeypatch.setattr(history, "side", lambda source, *more: read.append(source) or side(source, *more))
    assert main(["report", "history", *sources, "--out", str(page)]) == 0
    assert read == sources
    text = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.S)
    assert text.count("<h3") == 2 and "2 runs passed: run 2 (run101234) to run 3 (run201234)" in text
    assert "does not fail the gate" in text


def test_templates_print_control_characters_as_escapes(tmp_path, monkeypatch):
    """As text, Markdown and CSV do; and markup stays text."""
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "page.j2").write_text("<p>{{ text }}</p>")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert template("mine", "page.j2").render(text="\x1b[31m<b>") == "<p>\\x1b[31m&lt;b&gt;</p>"


def test_pages_load_their_libraries_late():
    program = "import sys, kvbench.papers.page, kvbench.extras.view.history; print(*{'jinja2'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_a_history_shows_where_the_code_changed(tmp_path, cell):
    sources = []
    for name, score in (("one", "a"), ("two", "a"), ("three", "b"), ("four", "b")):
        results = ResultsFolder(tmp_path / name)
        code = results.write_code({"score attn": score * 64, "cache": "c" * 64})
        with Recorder(results) as recorder:
            recorder.append(cell([1.0] * 60, code=code))
        sources.append(str(results.path))
    runs = runs_of(sources, silent)
    assert [run.changed for run in runs] == [(), (), ("score attn",), ()]
    page, listed = tmp_path / "history.html", tmp_path / "history.json"
    write_history(sources, page, silent, json=listed)
    assert page.read_text().count("code changed since run 2: score attn") == 1  # in a line of its own
    assert [run["code_changed"] for run in json.loads(listed.read_text())["runs"]] == [[], [], ["score attn"], []]


def test_a_history_has_a_line_of_its_own_look_for_each_experiment(tmp_path, cell, results):
    """Two values of a setting are two lines, though their cells have the same labels."""
    folder = results(*(cell([1.0], budget=f"0.{i + 1:02}") for i in range(30)))
    write_history([str(folder)], tmp_path / "history.html", silent)
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', (tmp_path / "history.html").read_text())[1])
    drawn = [tuple(drawn["look"]) for drawn in data["cells"].values()]
    assert len({colour for colour, *_ in drawn}) == 1 and len({*drawn}) == 30
    for number, tokens in enumerate((16, 24), 1):
        description = {"task": {"max_new_tokens": tokens}}
        ResultsFolder(tmp_path / f"run{number}").write_cell(digest(canonical(description)), description)
        with Recorder(tmp_path / f"run{number}") as recorder:
            recorder.append(cell([1.0], cell=digest(canonical(description))))
    named = names([str(tmp_path / "run1"), str(tmp_path / "run2")])
    assert [name.split()[-1] for name in named.values()] == ["task.max_new_tokens=16", "task.max_new_tokens=24"]


def test_the_head_of_a_page_names_the_usual_value_of_a_swept_setting(tmp_path, cell, results):
    descriptions = [{"score": {"name": "faded", "half_life": tokens}} for tokens in (64, 32)]
    names = [digest(canonical(description)) for description in descriptions]
    labels = ("faded", "faded half_life=32")
    folder = results(*(cell([1.0], score=label, cell=name) for label, name in zip(labels, names, strict=True)))
    for name, description in zip(names, descriptions, strict=True):
        ResultsFolder(folder).write_cell(name, description)
    write_page(folder, tmp_path / "page.html", silent)
    assert "; faded has half_life=64</p>" in (tmp_path / "page.html").read_text()
