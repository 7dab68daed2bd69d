"""The page: data that cannot become markup, nothing from a network, and in a real browser a table that is there."""

import base64
import json
import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from kvbench.cli.main import main
from kvbench.records import KeptSets, PromptRecord, Recorder, ResultsFolder
from kvbench.report.html.history import runs_of
from kvbench.report.html.page import page_of, write_page
from kvbench.report.html.template import embedded

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


def test_samples_are_the_failed_and_the_worst_first(folder):
    page = page_of(folder, silent, samples=2)
    assert [one["sample"] for one in page.samples["a1"]] == [3, 1]
    assert (page.rows, page.shown) == (7, 4)
    assert page.samples["a1"][0]["error"] == HOSTILE
    prompt = page.prompts[page.samples["a1"][1]["prompt"]]
    assert prompt["references"] == [HOSTILE]
    assert prompt["tail"].endswith(HOSTILE) and len(prompt["tail"]) == 600


def test_cells_show_the_same_samples_so_that_they_can_be_compared(tmp_path, cell):
    """The worst over both cells come first: 2 (0 and 0), 1 (0 and 1), 0 (1 and 1)."""
    with Recorder(tmp_path / "results") as recorder:
        recorder.append([*cell([1.0, 0.0, 0.0], cell="a1"), *cell([1.0, 1.0, 0.0], "h2o", cell="b2")])
    page = page_of(tmp_path / "results", silent, samples=2)
    assert [[s["sample"] for s in page.samples[name]] for name in ("a1", "b2")] == [[2, 1], [2, 1]]


def test_kept_positions_are_shares_by_position(folder):
    (one,) = [one for one in page_of(folder, silent).samples["a1"] if one["kept"]]
    shares = list(base64.b64decode(one["kept"]))
    assert len(shares) == one["seen"] == 12
    assert shares[0] == 255 and shares[1] == 128 and shares[2] == 128 and shares[3] == 0 and shares[11] == 128


def test_data_cannot_leave_its_element():
    text = embedded({"a": HOSTILE})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": HOSTILE}


def test_the_page_asks_no_network_and_says_no_secret(folder, tmp_path):
    write_page(folder, tmp_path / "page.html", silent)
    html = (tmp_path / "page.html").read_text()
    own = re.sub(r"<script>.*?</script>", "", html, flags=re.S)
    assert "default-src 'none'" in own
    assert not re.search(r"<(link|img|iframe)\b|\bsrc=|\bhref=|@import|url\(", own.split('<script id="data"')[0])
    assert "hf_secret" not in html and "HF_TOKEN" not in html
    assert "document.title=" not in own.replace("\\u003c", "<").split('<script id="data"')[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "page.txt"], "a page is an .html file"),
        ([], "arguments are required: --out"),
        (["--out", "page.html", "samples=many"], "samples=many"),
    ],
    ids=["suffix", "no_file", "samples"],
)
def test_bad_arguments_are_refused(folder, capsys, arguments, message):
    assert main(["report", "html", "--results", str(folder), *arguments]) == 2
    assert message in capsys.readouterr().err


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_a_browser_shows_the_cells_and_runs_no_text_of_a_model(folder, tmp_path):
    page = tmp_path / "page.html"
    assert main(["report", "html", "--results", str(folder), "--out", str(page)]) == 0
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *QUIET]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    shown = subprocess.run([*command, f"file://{page}#a1"], capture_output=True, text=True, timeout=120, check=True)
    dom = re.sub(r"<script.*?</script>", "", shown.stdout, flags=re.S)
    assert "<title>kvbench: ruler/niah_single_1</title>" in dom
    assert len(re.findall(r"<tr[^>]*tabindex", dom)) == 2
    assert dom.count('class="sample"') == 4
    assert "&lt;/script&gt;&lt;script&gt;" in dom and "<img" not in dom.split('id="drill"')[1]
    assert "scatterlayer" in dom and "<canvas" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_cells_of_another_n_are_no_part_of_a_curve(tmp_path, cell):
    """Budgets 0.1 and 0.2 over 4 samples are one curve; 0.4 over 2 is another, and the legend says so."""
    results, page = tmp_path / "results", tmp_path / "page.html"
    with Recorder(results) as recorder:
        for budget, values in (("0.1", [0.0] * 4), ("0.2", [1.0] * 4), ("0.4", [1.0] * 2)):
            recorder.append(cell(values, cell=f"c{budget[2:]}", budget=budget, kept_fraction=float(budget)))
    assert main(["report", "html", "--results", str(results), "--out", str(page)]) == 0
    assert "decode_seconds" not in re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *QUIET]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    shown = subprocess.run([*command, f"file://{page}"], capture_output=True, text=True, timeout=120, check=True)
    dom = re.sub(r"<script.*?</script>", "", shown.stdout, flags=re.S)
    names = [re.sub("<[^>]*>", "", text) for text in re.findall(r'class="annotation-text"[^>]*>(.*?)</text>', dom)]
    assert names == ["snapkv attn", "snapkv attn (n = 2)"]
    assert "n = 4 samples; open marks on dotted lines" in dom
    assert len(re.findall(r'class="trace scatter', dom)) == 2


def run_of(folder, cell, values, **columns):
    with Recorder(folder) as recorder:
        recorder.append(cell(values, cache_bytes=10, **columns))
    ResultsFolder(folder).write_environment({"source": {"commit": f"{folder.name}0123456789", "dirty": False}})
    return str(folder)


def test_a_standing_loss_fails_until_it_is_gone(tmp_path, cell):
    """Four runs of ten right answers in forty are held against the last good one, and not against each other."""
    good, bad = [1.0] * 40, [1.0] * 10 + [0.0] * 30
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
    assert main(["report", "history", *sources[:5], *flags]) == 0
    html = re.sub(r"<script.*?</script>", "", files[0].read_text(), flags=re.S)
    assert '<strong class="bad">fails</strong> the gate, as all do since run 3 (bad101234)' in html
    assert "run 5 (bad301234): failed against run 2, failing since run 3 (bad101234)" in html
    listed = json.loads(files[1].read_text())["runs"]
    assert [run["status"] for run in listed] == ["first", "passed", "failed", "failed", "failed"]
    assert [run["failing_since"] for run in listed] == [None, None, 3, 3, 3]
    assert {"number", "status", "failing_since", "commit", "date"} <= set(listed[0])
    assert [len(case) for case in ElementTree.parse(files[2]).iter("testcase")] == [0, 0, 1, 1, 1]
    assert main(["report", "history", "--out", str(files[0])]) == 2


def test_runs_that_pass_are_one_line(tmp_path, cell):
    sources = [run_of(tmp_path / f"run{i}", cell, [1.0] * 4) for i in range(5)]
    page = tmp_path / "history.html"
    assert main(["report", "history", *sources, "--out", str(page)]) == 0
    html = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.S)
    assert html.count("<h3") == 2 and "4 runs passed: run 2 (run101234) to run 5 (run401234)" in html
    assert "does not fail the gate" in html


def test_a_run_that_takes_longer_than_noise_fails(tmp_path, cell):
    timed = {"metric": "seconds_per_token", "task": "efficiency", "decode_seconds": 1.0}
    sources = [run_of(tmp_path / f"t{i}", cell, [t] * 4, **timed) for i, t in enumerate((1.0, 1.2, 1.3, 1.21))]
    assert [run.status for run in runs_of(sources, silent)] == ["first", "passed", "passed", "passed"]
    slower = [*sources, run_of(tmp_path / "slow", cell, [1.6] * 4, **timed)]
    assert (
        "a step took 1.21 s -> 1.6 s (x1.32, more than the noise of x1.25)" in runs_of(slower, silent)[-1].findings[0]
    )
    whole = [run_of(tmp_path / f"w{t}", cell, [1.0] * 4, prefill_seconds=float(t)) for t in (1, 2, 3)]
    runs = runs_of(whole, silent)
    assert [run.status for run in runs] == ["first", "passed", "passed"]
    assert runs_of([whole[0], whole[2]], silent)[1].findings == [
        "all rows took 1 s -> 3 s (x3.00, more than the noise of x2)"
    ]
