import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from kvbench.records import ResultsFolder, read_rows
from kvbench.report.tables.means import best_and_second
from kvbench.report.tables.summary import COLUMNS, summaries
from kvbench.report.tables.table import View, print_table
from tests.cells import name_of

ROOT = Path(__file__).resolve().parents[2]

TEXT = """\
model reference, task ruler/niah_single_1, context length 512
string_match_all in %: mean [95 % interval] of n samples; * best of its column

policy         score          n    budget 0.1         budget 0.2   evict
                                  kept 10.0 %        kept 20.0 %
                                     51.2 KiB            102 KiB
------------------------------------------------------------------------
full                          10  90  [60,98]   90  [60, 98]
------------------------------------------------------------------------
streaming_llm                 10   0  [ 0,28]   10  [ 2, 40]      2.0 ms
snapkv         attn           10  50  [24,76]  100  [68,100] n=8  2.0 ms
snapkv         obcache_joint  10  70* [40,89]                     2.0 ms

full: no eviction (512 KiB), repeated in every column for reference.
Mean times: prefill 45 ms per prompt (shared); evict column: per prompt; decode 36 ms per token.
Not informative: 0 %: streaming_llm at budget 0.1; 100 %: snapkv attn at budget 0.2.
2 of 60 rows failed; they are left out of all means:
  the | prompt is too long -- snapkv attn 0.2 (samples 8, 9)
"""


def table(folder: Path, format: str = "text", **options: object) -> str:
    out = io.StringIO()
    over = options.pop("mean_over", "questions")
    keys = (options.pop(name, None) for name in ("rows", "cols", "against", "average"))
    view = View(*keys, mean_over=over)  # type: ignore[arg-type]
    print_table(folder, format, out, view, **options)  # type: ignore[arg-type]
    return out.getvalue()


def figures(text: str) -> list[str]:
    """Every mean with its interval, in the order of the page, without padding."""
    return [re.sub(r"[ *]", "", figure) for figure in re.findall(r"[\d.]+\*? +\[[^]]*\]", text)]


@pytest.mark.parametrize(
    ("values", "best", "second"),
    [
        ({"a": 3, "b": 1, "c": 2}, "a", "c"),
        ({"a": 3, "b": 3, "c": 2}, "ab", ""),
        ({"a": 3, "b": 2, "c": 2}, "a", "bc"),
        ({"a": 3, "b": 2}, "a", ""),
        ({"a": 3, "b": 3, "c": 3}, "", ""),
        ({}, "", ""),
    ],
)
def test_no_second_stands_beside_two_that_are_best(values: dict[str, float], best: str, second: str) -> None:
    assert best_and_second(values, highest=True) == ({*best}, {*second})
    assert best_and_second({key: -value for key, value in values.items()}, highest=False) == ({*best}, {*second})


def test_a_small_table(small: Path) -> None:
    assert table(small) == TEXT


def test_csv_is_one_line_a_cell_and_loads_with_every_digit(small: Path) -> None:
    lines = [replace(line, decode_seconds=None) for line in summaries(read_rows(small))]
    text = table(small, "csv")
    read = list(csv.DictReader(io.StringIO(text)))
    assert tuple(read[0]) == COLUMNS
    for line, strings in zip(lines, read, strict=True):
        for name in COLUMNS:
            value = getattr(line, name)
            assert strings[name] == ("" if value is None else str(value))
    frame = pandas.read_csv(io.StringIO(text), dtype={"budget": str})
    assert frame["mean"].tolist() == [line.mean for line in lines]
    assert frame["score"].isna().tolist() == [line.score is None for line in lines]
    assert frame["budget"].tolist() == ["1.0", "0.1", "0.2", "0.1", "0.2", "0.1"]


def test_a_note_counts_the_answers_that_did_not_end(cell, results) -> None:
    """Those that ended within their reasoning, and those at their limit where these are most of those that say it."""
    full = cell([1.0, 1.0], "full", ended="limit")
    text = table(results(full, cell([0.0] * 3, ended="limit", reasoning="cut"), cell([1.0] * 3, "h2o", ended="end")))
    assert "3 of 8 answers ended within their reasoning and are 0" in text
    assert "5 of 8 answers did not end before task.max_new_tokens." in text


def test_failures_that_differ_in_numbers_alone_are_one_line(cell, results) -> None:
    """The first stands for all; a name with a digit, or another word, is another message."""
    small = [f"budget=0.001 is 1 of {tokens} tokens" for tokens in (873, 885, 876)]
    folder = results(cell([1.0] * 3, "full"), cell(small, "snapkv"), cell([*small[:1], 1.0, "h2o"], "tova"))
    text = " ".join(table(folder).split())
    assert (
        "budget=0.001 is 1 of 873 tokens (and 2 more like it) -- snapkv attn 0.1 (samples 0, 1, 2); tova attn 0.1 "
        "(sample 0) h2o -- tova attn 0.1 (sample 2)"
    ) in text
    failures = [line["failures"] for line in json.loads(table(folder, "json"))]
    assert failures[1] == {message: [place] for place, message in enumerate(small)}


def test_decoding_that_cells_share_is_no_ones_cost(cell, results, tmp_path: Path) -> None:
    timed = cell([0.5], "tova", task="efficiency", metric="seconds_per_token", decode_seconds=2.5)
    folder = results(cell([1.0], "h2o", decode_seconds=7.5), timed)
    print_table(folder, "parquet", tmp_path / "table.parquet")
    frames = [
        pandas.read_csv(io.StringIO(table(folder, "csv"))),
        pandas.DataFrame(json.loads(table(folder, "json"))),
        pandas.read_parquet(tmp_path / "table.parquet"),
    ]
    for frame in frames:
        assert frame.set_index("policy")["decode_seconds"].dropna().to_dict() == {"tova": 2.5}


def test_json_and_parquet_are_one_line_a_cell(small: Path, tmp_path: Path) -> None:
    lines = [replace(line, decode_seconds=None) for line in summaries(read_rows(small))]
    read = json.loads(table(small, "json"))
    columns = [{name: getattr(line, name) for name in COLUMNS} for line in lines]
    assert [{name: line[name] for name in COLUMNS} for line in read] == columns
    assert read[4]["failures"] == {"the | prompt\nis too long": [8, 9]}
    print_table(small, "parquet", tmp_path / "table.parquet")
    frame = pandas.read_parquet(tmp_path / "table.parquet")
    assert list(frame.columns) == list(COLUMNS) and frame["mean"].tolist() == [line.mean for line in lines]
    with pytest.raises(ValueError, match=r"name it with --out FILE.parquet"):
        table(small, "parquet")


def test_lines_and_columns_can_be_settings_of_cells(cell, results) -> None:
    settings = [(0, None), (50, None), (0, 16), (50, 16)]
    cells = [{"task": {"depth": depth}, "policy": {"window": window}} for depth, window in settings]
    rows = [
        cell([1.0, 0.0], "full" if window is None else "h2o", cell=name_of(description))
        for description, (_, window) in zip(cells, settings, strict=True)
    ]
    folder = results(*rows)
    for description in cells:
        ResultsFolder(folder).write_cell(name_of(description), description)
    text = table(folder, rows="policy,policy.window", cols="task.depth")
    assert "task.depth 0" in text and "task.depth 50" in text
    assert re.search(r"^full +2 +50 .* 50 ", text, re.MULTILINE)
    assert re.search(r"^h2o +16 +2 +50 .* 50 ", text, re.MULTILINE)
    with pytest.raises(ValueError, match=r"no cell has a setting 'task\.deep'"):
        table(folder, cols="task.deep")


def test_a_table_says_that_its_selection_leaves_out_the_full_cache(small: Path) -> None:
    note = "The selection leaves out the full cache, whose rows have budget=1.0."
    assert table(small, where={"budget": ("0.1",)}).endswith(f"{note}\n")
    whole = table(small, where={"budget": ("0.1", "1.0")})
    assert "leaves out" not in whole and "full: no eviction" in whole


@pytest.mark.parametrize("width", [52, 80, 200])
def test_a_narrow_screen_cuts_the_table_and_loses_nothing(
    small: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    text = table(small)
    assert max(map(len, text.splitlines())) <= width
    assert sorted(figures(text)) == sorted(figures(TEXT))
    for label in ("policy", "streaming_llm", "obcache_joint", "36 ms", "prefill", "evict", "samples 8, 9"):
        assert label in text


def test_a_part_of_a_wide_table_has_the_lines_with_a_figure_in_it(
    cell, results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    full, newest, snapkv = cell([1.0] * 4, "full"), cell([0.0] * 4, "streaming_llm"), cell([1.0, 0.0] * 2, budget="0.2")
    first, second = re.split(r"(?=policy +)", table(results(full, newest, snapkv)))[1:]
    assert "budget 0.1" in first and "streaming_llm" in first and "snapkv" not in first and "\nfull" in first
    assert "budget 0.2" in second and "snapkv" in second and "\nstreaming_llm" not in second and "\nfull" in second


def test_what_a_reader_reads_stands_in_its_line(cell, results) -> None:
    read = cell([1.0, 0.0], "snapkv reader=quest", score="attn", read_bytes=3 * 2**20, index_bytes=2**20)
    dense = cell([1.0, 0.0], read_bytes=8 * 2**20, index_bytes=0)
    text = table(results(read, dense))
    assert re.search(r"^policy +score +read +n", text, re.MULTILINE)
    assert re.search(r"^snapkv reader=quest +attn +4.00 MiB +2 ", text, re.MULTILINE)
    assert re.search(r"^snapkv +attn +2 ", text, re.MULTILINE)
    assert "read: bytes that a token of an answer reads" in text


def test_the_best_of_a_column_is_marked_unless_nothing_is_best(cell, results) -> None:
    folder = results(
        cell([1.0, 0.0], "h2o"),
        cell([1.0, 1.0], "snapkv"),
        cell([1.0, 1.0], "tova"),
        cell([1.0, 0.0], "h2o", budget="0.2"),
        cell([0.0, 1.0], "tova", budget="0.2"),
        cell([1.0, 1.0], "full"),
    )
    starred = {line.split()[0]: line.count("*") for line in table(folder).splitlines()[4:] if "[" in line}
    assert starred == {"full": 0, "h2o": 0, "snapkv": 1, "tova": 1}


def test_lines_of_other_samples_are_not_ranked_among_each_other(cell, results) -> None:
    """Two seeds draw two sets of prompts: the best policy of each is marked."""
    folder = results(
        cell([1.0, 1.0], "h2o", seed=1),
        cell([1.0, 0.0], "tova", seed=1),
        cell([0.0, 0.0], "h2o", seed=2),
        cell([1.0, 0.0], "tova", seed=2),
    )
    starred = {tuple(line.split()[:3]) for line in table(folder).splitlines()[4:] if "*" in line}
    assert starred == {("h2o", "attn", "1"), ("tova", "attn", "2")}


def test_the_lower_perplexity_is_the_better(cell, results) -> None:
    text = table(results(*(cell([x, 8.0], name, metric="perplexity") for name, x in (("h2o", 9.0), ("tova", 7.5)))))
    assert "perplexity (lower is better): mean" in text and "%:" not in text
    assert "7.750* [" in text and "8.500  [" in text


def test_means_have_the_decimals_that_they_need_and_what_was_not_measured_is_blank(cell, results) -> None:
    text = table(
        results(
            cell([1.0, 0.0], task="a"),
            cell([1.0, 1.0], "h2o", task="a"),
            cell([1.0, 0.0, 0.0], task="b"),
            cell([1.0], task="c"),
        )
    )
    halves, third, alone = text.split("model reference")[1:]
    assert " 50  [" in halves and "33.3" in third
    assert figures(alone) == [] and re.search(r"attn +1 +100$", alone, re.MULTILINE)
    for word in ("kept", "KiB", "evict", "decode", "prefill", "nan", "None", "0 B", "0 ms"):
        assert word not in text


def test_a_cell_without_any_value_says_so_and_many_messages_are_cut_short(cell, results) -> None:
    text = table(results(cell(["too long"] * 7), cell([None, None], "h2o"), cell([1.0, 1.0], "tova")))
    assert re.search(r"snapkv  attn +0 +failed$", text, re.MULTILINE)
    assert re.search(r"h2o +attn +0 +†$", text, re.MULTILINE)
    assert "† no number (NaN or missing), left out of the mean: h2o attn 0.1 (samples 0, 1)." in text
    assert "7 of 9 rows failed" in text and "too long -- snapkv attn 0.1 (samples 0, 1, 2, 3, 4, ...)" in text
    text = table(results(cell([f"message {word}" for word in "abcdefghi"], "cake")))
    assert "message e" in text and "message f" not in text and "and 5 more messages: see `kvbench report rows`" in text


def test_several_tasks_are_several_tables(cell, results) -> None:
    folder = results(cell([1.0]), cell([1.0], task="ruler/vt"))
    assert re.findall(r"task (\S+),", table(folder)) == ["ruler/niah_single_1", "ruler/vt"]
    assert table(folder, "markdown").count("\n\n**model reference") == 1


def test_rows_and_cols_choose_lines_and_columns(small: Path) -> None:
    text = table(small, rows="budget", cols="policy,score")
    assert re.search(r"budget +n +streaming_llm +snapkv, attn +snapkv, obcache_joint", text)
    assert re.search(r"^full +10 +90 .* 90 .* 90 ", text, re.MULTILINE)
    assert "model reference, task ruler/niah_single_1, context length 512\n" in text
    text = table(small, cols="score")  # the lines lose it
    assert re.search(r"^policy .* attn +obcache_joint", text, re.MULTILINE)
    assert "context length 512, budget 0.1\n" in text and "context length 512, budget 0.2\n" in text


def test_settings_come_from_the_descriptions_of_cells(cell, results) -> None:
    cells = [{"policy": {"window": window}, "seed": 0} for window in (16, 32)]
    names = [name_of(description) for description in cells]
    folder = results(cell([1.0, 0.0], cell=names[0]), cell([1.0, 1.0], cell=names[1]))
    assert re.search(r"policy +score +cell", table(folder)) and names[1][:4] in table(folder)
    for description in cells:
        ResultsFolder(folder).write_cell(name_of(description), description)
    text = table(folder)
    assert "policy.window=16" in text and "policy.window=32" in text and "seed" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "pdf"}, "unknown format 'pdf'; allowed: text|markdown|latex|html|csv|json|parquet"),
        ({"format": "text", "rows": "polcy"}, "rows=polcy: there is no key 'polcy'; did you mean policy"),
        ({"format": "text", "cols": ""}, "cols= has no key"),
        ({"format": "csv", "cols": "score"}, "leave rows= and cols= out"),
    ],
)
def test_wrong_use_is_said_in_one_line(small: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        table(small, **options)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="unknown format"):  # said before a missing folder
        table(small / "nowhere", "pdf")


def test_a_torn_line_is_told_to_the_caller(small: Path) -> None:
    (path,) = (small / "rows").iterdir()
    with path.open("a") as file:
        file.write('{"cell": "ab", "sam')
    warnings: list[str] = []
    assert table(small, warn=warnings.append) == TEXT
    assert "torn last line" in warnings[0] and "differ from the checksum" in warnings[1] and len(warnings) == 2


def on_a_terminal(folder: Path) -> list[str]:
    """What the table writes when its output is a terminal, without and with NO_COLOR."""
    ours, theirs = pty.openpty()
    program = (
        "import os, sys, kvbench.report.tables.table as t\n"
        f"for _ in range(2):\n    t.print_table({str(folder)!r}, 'text', sys.stdout)\n"
        "    print('====', flush=True)\n    os.environ['NO_COLOR'] = '1'\n"
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    subprocess.run(
        [sys.executable, "-c", program],
        stdout=theirs,
        check=True,
        env=clean | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return written.decode().replace("\r\n", "\n").split("====\n")[:2]


def test_a_terminal_gets_the_same_table_in_colour_but_with_no_color(small: Path) -> None:
    shown, without = on_a_terminal(small)
    assert "\x1b[1;32m" in shown  # the best, bold green
    bare = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert [line.rstrip() for line in bare.splitlines()] == TEXT.splitlines()
    assert "snapkv" in without and not re.search(r"\x1b\[[0-9;]*3[0-9]", without)


def test_means_that_differ_beyond_chance_are_marked(cell, results) -> None:
    folder = results(
        cell([1.0] * 40, "full"),
        cell([1.0] * 39 + [0.0], "tova"),
        cell([0.0] * 40, "h2o"),
        cell([1.0] * 40, "full", task="pg19", metric="nll"),
        cell([0.5] * 40, "snapkv", task="pg19", metric="nll"),
    )
    text = table(folder, against="full")
    assert re.search(r"^h2o .* 0:40▼$", text, re.MULTILINE) and re.search(r"^snapkv .* 40:0▲$", text, re.MULTILINE)
    assert not re.search(r"^(tova|full) .*[▲▼]", text, re.MULTILINE) and re.search(r"^tova .* 0:1$", text, re.MULTILINE)
    assert "a:b prompts won and lost" in text.replace("\n", " ") and "0:1" not in table(folder)
    assert "worse than full beyond chance" in text.replace("\n", " ") and "▼" not in table(folder)
    with pytest.raises(ValueError, match=r"against=h20: no selected row has it; allowed: policy full, h2o, snapkv"):
        table(folder, against="h20")


def test_a_policy_with_several_scores_is_named_by_a_selection(cell, results) -> None:
    folder = results(cell([1.0] * 40), cell([0.0] * 40, score="caote"), cell([0.0] * 40, "h2o"))
    with pytest.raises(ValueError, match=r"against=snapkv: .* 2 baselines.*such as policy=snapkv,score=(attn|caote)"):
        table(folder, against="snapkv")
    attn, caote = (table(folder, against=f"policy=snapkv,score={score}") for score in ("attn", "caote"))
    assert re.search(r"^h2o .*▼$", attn, re.MULTILINE) and re.search(r"^snapkv +caote .*▼$", attn, re.MULTILINE)
    assert re.search(r"^snapkv +attn .*▲$", caote, re.MULTILINE) and not re.search(r"^h2o .*[▲▼]", caote, re.MULTILINE)
    with pytest.raises(ValueError, match="no selected row has it"):
        table(folder, against="policy=snapkv,score=none")
    with pytest.raises(ValueError, match="rows have no column 'scor'"):
        table(folder, against="policy=snapkv,scor=attn")


def test_a_table_averages_over_contexts_where_asked(cell, results) -> None:
    rows = cell([1.0, 0.0, 0.0, 1.0], metric="kvzip_inclusion")
    shas = ["a" * 64] * 3 + ["b" * 64]
    folder = results([replace(row, context_sha256=sha) for row, sha in zip(rows, shas, strict=True)])
    assert re.search(r"^snapkv .* 50 ", table(folder), re.MULTILINE)
    text = table(folder, mean_over="contexts")
    assert re.search(r"^snapkv .* 66.7 ", text, re.MULTILINE) and "Means are over contexts" in text
    with pytest.raises(ValueError, match="--mean-over questins: allowed: questions, contexts"):
        table(folder, mean_over="questins")
    with pytest.raises(ValueError, match="--mean-over contexts takes the questions of a context together"):
        table(folder, mean_over="contexts", against="snapkv")
