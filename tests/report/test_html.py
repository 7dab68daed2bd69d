"""The page: data that cannot become markup, nothing from a network, and in a real browser a table that is there."""

import base64
import json
import re
import shutil
import subprocess

import pytest

from kvbench.cli.main import main
from kvbench.records import KeptSets, PromptRecord, Recorder, ResultsFolder
from kvbench.report.html.history import runs_of
from kvbench.report.html.page import embedded, page_of, write_page

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
    assert page.samples["a1"][1]["references"] == [HOSTILE]
    assert page.samples["a1"][1]["tail"].endswith(HOSTILE) and len(page.samples["a1"][1]["tail"]) == 600


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
            recorder.append(cell(values, cell=f"c{budget}", budget=budget, kept_fraction=float(budget)))
    assert main(["report", "html", "--results", str(results), "--out", str(page)]) == 0
    assert "decode_seconds" not in re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.S)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", *QUIET]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    shown = subprocess.run([*command, f"file://{page}"], capture_output=True, text=True, timeout=120, check=True)
    dom = re.sub(r"<script.*?</script>", "", shown.stdout, flags=re.S)
    assert re.findall(r'class="legendtext"[^>]*>([^<]+)', dom) == ["snapkv attn", "snapkv attn (n = 2)"]
    assert "n = 4 samples; open marks on dotted lines" in dom
    assert len(re.findall(r'class="trace scatter', dom)) == 2


def test_a_history_tells_a_run_that_got_worse(tmp_path, cell):
    good, same, bad = tmp_path / "good", tmp_path / "same", tmp_path / "bad"
    for folder, values in ((good, [1.0] * 40), (same, [1.0] * 40), (bad, [1.0] * 10 + [0.0] * 30)):
        with Recorder(folder) as recorder:
            recorder.append(cell(values, cache_bytes=10))
        source = {"commit": f"{folder.name}0123456789", "dirty": False}
        ResultsFolder(folder).write_environment({"source": source})
    runs = runs_of([str(good), str(same), str(bad)], silent)
    assert [run.verdict for run in runs] == ["first", "passed", "failed"]
    assert [run.name for run in runs] == ["good01234", "same01234", "bad012345"]
    name = "reference ruler/niah_single_1 512 snapkv attn 0.1"
    assert [run.numbers[name]["accuracy"] for run in runs] == [100, 100, 25]
    page = tmp_path / "history.html"
    assert main(["report", "history", str(good), str(bad), "--out", str(page)]) == 0
    html = page.read_text()
    assert '<strong class="bad">fails</strong>' in html and "bad012345: failed" in html
    assert main(["report", "history", "--out", str(page)]) == 2
