"""Pages in the papers' own words: names, heads over several columns, marks, units. Expected: the papers' tables."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from kvbench.cli.main import main
from kvbench.papers.item import item_of, names
from kvbench.papers.labels import method, names_of, printed_name
from kvbench.papers.published import published
from kvbench.support import paths


@pytest.fixture
def shown(capsys):
    def show(name: str, format: str = "text") -> str:
        assert main(["paper", name, "--published", "--format", format]) == 0
        return capsys.readouterr().out

    return show


def words(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_table_1_of_obcache_has_its_heads_once_and_fits_in_one_block(shown):
    lines = shown("obcache/table1").splitlines()
    heads = next(line for line in lines if line.startswith("method"))
    lengths = [f"{tokens} tokens" for tokens in (4096, 8192, 16384, 32768)]  # "4K Context", ...
    assert [head.strip("- ") for head in words(heads)] == ["method", *lengths, "average"]
    assert words(lines[lines.index(heads) + 1]) == ["80", "160", "320", "400"] * 4
    assert sum(line.startswith("method") for line in lines) == 1
    methods = [words(line)[0] for line in lines if re.search(r"\d\.\d+[*']?$", line)]
    scores = ["+ OBCache-Value", "+ OBCache-Key", "+ OBCache-Joint"]
    assert methods == ["H2O", *scores, "TOVA", *scores, "SnapKV", *scores]


def test_table_2_of_caote_names_model_and_budget_once(shown):
    text = shown("caote/table2")
    block = text.split("\n\n")[2]
    models = ["Llama 3.1-8B-Instruct", "Llama 3.2-3B-Instruct"]
    assert re.findall(r"Llama 3\.\d-\dB-Instruct", block) == models
    assert re.findall(r"\b[24]k\b", block) == ["2k", "4k"] * 2
    assert "single-document QA" in block and re.search(r"NarrativeQA +Qasper +MF-en +HotpotQA", block)
    assert re.search(r"^ +\+ FastCAOTE +15\.15 +41\.27", block, re.MULTILINE)


def test_table_10_of_lava_takes_the_papers_names_for_what_it_leaves_out(shown):
    text = shown("lava/table10")
    assert re.search(r"^128HL +LAVa \(Ours\) \(a\) +19\.57 +21\.11", text, re.MULTILINE)
    assert "– layer" in text and "– head" in text and "Full Cache" in text
    assert "(a): budget inferred" in text and not re.search(r"\d +\(a\)", text)  # once a line, at no number


def test_a_flag_of_all_numbers_marks_none_and_one_of_a_column_its_head(shown):
    poster, table = shown("obcache/poster"), shown("obcache/table3")
    assert "all numbers: model not stated" in poster and "(a)" not in poster
    assert "w/ GQA score (a)" in table and "(a): code unreleased" in table and not re.search(r"\d +\(a\)", table)
    lines = [line for line in shown("caote/table6").splitlines() if "CAOTE" in line]
    assert sum("CAOTE (a)" in line for line in lines) == 2 and sum("CAOTE  " in line for line in lines) == 2


def test_the_table_of_repeat_prompts_has_the_papers_rows(shown):
    text = shown("kvzip/repeat_prompt")
    for label, value in (("Original", "94.37"), ("Paraphrased", "94.45"), ("No", "94.25")):
        assert re.search(rf"{label} \(.*\) +{value}$", text, re.MULTILINE)
    assert re.search(r"^SnapKV +32\.15$", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["obcache/table1", "obcache/poster", "lava/table10"])
def test_heads_over_several_columns_in_latex(shown, name):
    text = shown(name, "latex")
    tabular = text[text.index(r"\toprule") : text.index(r"\bottomrule")].splitlines()
    for head, rules in pairwise(tabular):
        if r"\cmidrule" in rules:
            spans = [int(span) for span in re.findall(r"\\multicolumn\{(\d+)\}", head)]
            ends = [(int(a), int(b)) for a, b in re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", rules)]
            assert spans == [last - first + 1 for first, last in ends] and all(span > 1 for span in spans)
    assert r"\multicolumn" in text and r"\resizebox" in text and text.count(r"\begin{tabular}") == 1


@pytest.mark.parametrize("name", ["obcache/table1", "caote/table2"])
def test_html_has_shared_heads_and_the_numbers_of_the_paper(shown, name):
    """Every row covers all columns."""
    page = shown(name, "html")
    rows = [ET.fromstring(row) for row in re.findall(r"<tr.*?</tr>", page)]
    widths = {sum(int(cell.get("colspan", 1)) for cell in row) for row in rows}
    assert len(widths) == 1 and any(cell.get("colspan") for cell in rows[0])
    numbers = {"".join(cell.itertext()) for row in rows for cell in row if cell.tag == "td"} - {""}
    assert numbers == {number.value for number in published(item_of(name), paths.papers())}


def test_units_are_what_they_are(shown):
    stated = shown("kvzip/stated")
    assert "as printed\n" in stated and re.search(r"window of the baselines +32 +tokens$", stated, re.MULTILINE)
    assert re.search(r" 25 +percent \(a\)$", stated, re.MULTILINE)
    perplexities = shown("caote/table4")
    assert "difference to the perplexity of the full cache" in perplexities
    assert re.search(r"^Llama 3\.1-8B-Instruct +9\.833$", perplexities, re.MULTILINE)


def test_every_policy_and_score_of_an_item_has_a_printed_name(shown):
    for name in names():
        item = item_of(name)
        if "policy" not in item.layout.rows or item.layout.words:
            continue
        tables = re.split(r"\n\(a\)|\nall numbers|\nThe paper", shown(name))[0] if item.published else ""
        ours = re.search(
            r"(?<![=,])\b(h2o_obcache|tova_obcache|snapkv|obcache_\w+|ada_\w+|fastcaote|lava_\w+)\b", tables
        )
        assert not ours, f"{name}: {ours}"


def test_methods_are_named_with_their_host_where_it_stands_alone():
    labels = names_of(item_of("obcache/figure3a"))
    assert method(labels, "h2o_obcache", "attn") == "H2O"
    assert method(labels, "h2o_obcache", "obcache_joint") == "H2O + OBCache-Joint"
    assert method(labels, "h2o_obcache", "obcache_joint", {"h2o_obcache"}) == "+ OBCache-Joint"
    labels = names_of(item_of("lava/table10"))
    assert method(labels, "lava_uniform", "lava") == "– layer" and method(labels, "cake", "cake") == "CAKE"
    assert printed_name(labels, "budget", "0.05") == "5 %" and printed_name(labels, "budget", "128") == "128HL"
