import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.report.formats.latex import escaped
from kvbench.report.tables.means import means_table
from kvbench.report.tables.pivot import arrange
from kvbench.report.tables.summary import summaries
from tests.report.test_table import table

SMALL = r"""% 2 of 60 rows failed; they are left out of all means:
% the \textbar{} prompt is too long -- snapkv attn 0.2 (samples 8, 9)
\begin{table}[t]
\centering
\caption{Model reference, task ruler/niah\_single\_1, context length 512: string\_match\_all in \%, means of n samples. 95 \% intervals reach 32 points to either side at most. \textbf{Bold}: best, \underline{underlined}: second.}
\footnotesize\setlength{\tabcolsep}{4pt}\sisetup{detect-weight=true, mode=text}
\begin{tabular}{llrS[table-format=3.0]S[table-format=3.0]}
\toprule
{policy} & {score} & {n} & {budget 0.1} & {budget 0.2} \\
{} & {} & {} & {kept 10.0 \%} & {kept 20.0 \%} \\
{} & {} & {} & {51.2 KiB} & {102 KiB} \\
\midrule
full &  & 10 & 90 & 90 \\
\midrule
streaming\_llm &  & 10 & 0 & 10 \\
snapkv & attn & 10 & {\phantom{0}\underline{50}} & 100 {\,\scriptsize n=8} \\
snapkv & obcache\_joint & 10 & \bfseries 70 &  \\
\bottomrule
\end{tabular}
\par\smallskip full: no eviction (512 KiB), repeated in every column for reference. Mean times: prefill 45 ms per prompt (shared); decode 36 ms per token. Not informative: 0 \%: streaming\_llm at budget 0.1; 100 \%: snapkv attn at budget 0.2.
\end{table}
"""  # noqa: E501


def latex(folder: Path, where: dict[str, list[str]] | None = None, **options: object) -> str:
    return table(folder, "latex", where=where, **options)


def test_a_small_table(small: Path) -> None:
    assert latex(small) == SMALL
    two = latex(small, {"policy": ["snapkv"], "budget": ["0.1"]}, rows="policy", cols="score")
    assert two.count("{kept 10.0 \\%}") == 2, "two columns of one head stay two"


def test_the_caption_says_in_which_windows_cells_differ(cell) -> None:
    """What text and Markdown say above a table, a paper's table needs most."""
    policies = {
        f"{name}{size}": {"policy": {"name": name, "accepts": ["budget"], "window": size, "recent": size}}
        for name, size in (("snapkv", 16), ("pyramidkv", 8))
    }
    cells = summaries([replace(row, cell=name, policy=name[:-1]) for name in policies for row in cell([1.0, 0.0])])
    (block,) = arrange(cells)
    assert "Cells differ in window 8 (pyramidkv" in means_table(block, policies.get).words


def test_a_cell_without_a_number_is_marked(cell, results) -> None:
    cells = {"snapkv": [None, None], "h2o": ["x", "x"], "tova": [1.0, 0.0], "cake": [0.0, 0.0]}
    text = latex(results(*(cell(values, policy) for policy, values in cells.items())))
    assert r"snapkv & attn & 0 & {\textsuperscript{\dag}} \\" in text and "h2o & attn & 0 & {failed} \\\\" in text
    assert r"\textsuperscript{\dag} no number" in text


NASTY = "\\ & % $ # _ { } ~ ^ < > | † \n end"


def test_text_has_no_commands() -> None:
    bare = escaped(NASTY)
    for known in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"\textless{}", r"\textgreater{}"):
        bare = bare.replace(known, "")
    bare = re.sub(r"\\text(bar\{\}|superscript\{\\dag\})|\\[&%$#_{}]", "", bare)
    assert not re.search(r"[\\&%$#_{}~^<>|\n]", bare)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here to compile with")
def test_it_compiles(cell, results, small: Path, tmp_path: Path) -> None:
    results(
        cell([0.3, 0.5], "h2o", task="edits", metric="f1"),
        cell([NASTY, 0.25], "tova", task="edits", metric="f1"),
        cell([0.1, 0.05], "cake", task="edits", metric="f1"),
        cell([2.0, 3.0], "tova", task="pg19", metric="nll"),
        cell([None, None], "h2o", task="pg19", metric="nll"),
    )
    packages = r"\documentclass{article}\usepackage{booktabs}\usepackage{siunitx,amssymb}"
    text = f"{packages}\\begin{{document}}{latex(small, against='streaming_llm')}\\end{{document}}"
    (tmp_path / "t.tex").write_text(text)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout[-2000:]
