"""The items' settings against what the papers say; expected values are copied from their texts."""

import csv
from functools import cache

import pytest

from kvbench.cli.main import main
from kvbench.config.overrides import parse
from kvbench.papers.cells import cells_of_item
from kvbench.papers.item import Item, item_of, names
from kvbench.papers.published import published
from kvbench.support import paths
from tests.embedded import KV_HEADS, LAYERS

parsed = cache(parse)


def values(run, key):
    """The values of a setting of a run; none if the run does not set it."""
    return [value.text for word in parsed(run) if word.key == key for value in word.values]


def runs_of(name, **words):
    """The runs of an item whose settings have these values."""
    return [run for run in item_of(name).all_runs if all(word in values(run, key) for key, word in words.items())]


@pytest.mark.parametrize(
    "item", ["table2", "table3", "table4", "table5", *(f"table{n}" for n in range(10, 14)), "figure2"]
)
def test_h2o_of_caote_sums_over_all_queries_of_a_block(item):
    """CAOTE, Section 2: f_score,j = sum over i = 1..m of A_i,j; Section 4: m = 128. Section 3.2 protects no token."""
    h2o_obcache = runs_of(f"caote/{item}", policy="h2o_obcache")
    assert h2o_obcache
    for run in h2o_obcache:
        assert values(run, "policy") == ["h2o_obcache"] and values(run, "policy.window") == ["all"]
        assert values(run, "schedule.prefill_block") == ["128"] and values(run, "policy.recent") == ["0"]


BUDGETS = {"8B": {"2048", "4096", "6144"}, "3B": {"2048", "4096", "6144", "8192"}}


@pytest.mark.parametrize(
    "name",
    ["caote/table4", pytest.param("caote/table5", marks=pytest.mark.slow)],  # 500 needles of each cell
)
def test_budgets_are_those_that_the_table_prints_for_each_model(name):
    cells = [entry.cell for entry in cells_of_item(item_of(name), []).entries]
    for size, budgets in BUDGETS.items():
        evicting = [cell for cell in cells if size in cell.model.label and cell.policy.name != "full"]
        assert {str(cell.budget) for cell in evicting} == budgets


def test_sources_name_sections_that_say_it():
    """LAVa: max pool 7 is in Section 5.1 and Appendix D, no window size anywhere, 1024 and 10000 in Appendix D."""
    for name in names():
        sources = item_of(name).sources
        if name.startswith("lava/"):
            assert not any("Section 4.3" in source or "Appendix E" in source for source in sources.values()), name
            pools = [source for key, source in sources.items() if "policy.pool" in key]
            assert all("Section 5.1, Appendix D" in source for source in pools)
            windows = [source for key, source in sources.items() if "policy.window" in key]
            assert all(source.startswith("the public") for source in windows)


def test_kvzip_prints_no_length_of_ruler_a_chunk_of_2k_and_shares():
    """KVzip's appendix: "chunk size m (fixed to 2K)"; of RULER it gives the model and the rate of 25 % only."""
    with (paths.papers() / "kvzip.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    (ruler,) = [line for line in lines if line["table"] == "ruler figure"]
    assert (ruler["model"], ruler["context_length"], ruler["value"]) == ("Qwen3-8B", "", "25")
    (chunk,) = [line for line in lines if line["protocol"].startswith("chunk size")]
    assert chunk["value"] == "2K"
    for name, stated in (("attention_share", {98.1, 99.4}), ("scoring_time", {10.0})):
        assert {*printed(f"kvzip/{name}").values()} == stated


def printed(name):
    """The published numbers of an item by place."""
    item = item_of(name)
    return {number.at: float(number.value) for number in published(item, paths.papers()) if number.value}


def test_obcache_figure_3a_takes_context_lengths_together():
    """Section 4.2: accuracies over all context sizes, OBCache-Joint only, with LLaMA and Qwen; lines of Table 1."""
    numbers = printed("obcache/figure3a")
    llama = "Llama-3.1-8B-Instruct"
    for score, lines in (("attn", (7.6, 10.8, 14.8, 17.2)), ("obcache_joint", (25.6, 33.2, 34.4, 29.6))):
        assert numbers[llama, "h2o_obcache", score, "80"] == pytest.approx(sum(lines) / 4, abs=0.006)
    assert {score for _, _, score, _ in numbers} == {"attn", "obcache_joint"}
    (run,) = item_of("obcache/figure3a").all_runs
    assert values(run, "model.path") == ["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct"]


def test_obcache_figure_3b_has_both_models():
    """Full cache: the means of the first lines of Tables 4 and 5."""
    numbers = printed("obcache/figure3b")
    with (paths.papers() / "obcache.csv").open(newline="") as file:
        full = [line for line in csv.DictReader(file) if line["table"] == "table 5" and line["policy"] == "full"]
    assert len(full) == 16
    mean = sum(float(line["value"]) for line in full) / 16
    assert numbers["Qwen2.5-7B-Instruct", "full", "", "1.0"] == pytest.approx(mean, abs=0.006)
    assert {at[0] for at in numbers} == {"Llama-3.1-8B-Instruct", "Qwen2.5-7B-Instruct"}


def test_obcache_figure_3c_is_perplexity_by_size_with_a_quarter_recent():
    """Appendix C.2.2: of 1024 tokens 256 are recent and 4 sinks; StreamingLLM keeps 1020 recent, TOVA 1020 by score."""
    item = item_of("obcache/figure3c")
    assert (item.layout.unit, item.picture) == ("perplexity", "curves")
    cells = [entry.cell for entry in cells_of_item(item, parse(["score=attn", "budget=1024"])).entries]
    protected = {
        cell.policy.name: (cell.policy.sink, cell.policy.resolve(0, 32768, cell.budget).recent) for cell in cells
    }
    assert protected["h2o"] == (4, 256) and protected["tova_obcache"] == (4, 0)
    assert len(values(item.settings, "budget")) > 2


EXTRACTION = [19.57, 21.11, 44.29, 33.91, 38.29, 23.59, 15.32, 18.56, 53.50, 85.20, 40.16, 21.75, 69.87, 74.75]
"""LAVa at 128HL (Tables 2 and 10) without passage count: question answering, few-shot and synthetic tasks."""
GENERATION = [19.33, 22.32, 11.42, 21.07, 51.94, 48.92]
"""Summarization and code."""


@pytest.mark.parametrize("name", ["lava/figure2", "lava/figure4"])
def test_extraction_and_generation_are_apart(name):
    numbers = printed(name)
    of_model = ("Mistral-7B-Instruct-v0.2",) if name == "lava/figure2" else ()
    for kind, columns in (("extraction", EXTRACTION), ("generation", GENERATION)):
        mean = sum(columns) / len(columns)
        assert numbers[*of_model, kind, "lava", "lava", "128"] == pytest.approx(mean, abs=0.006)


def test_table_14_is_lava_at_the_first_and_last_layer():
    """LAVa, Table 14: layer 31, LCC: AdaKV 149.25, LAVa 147.16; dynamic budgets, so policy=lava."""
    numbers = printed("lava/table14")
    assert numbers["31", "ada_snapkv", "attn", "longbench/lcc"] == 149.25
    assert numbers["31", "lava", "lava", "longbench/lcc"] == 147.16
    assert len(numbers) == 24
    assert runs_of("lava/table14", policy="lava") and not runs_of("lava/table14", policy="lava_uniform")


def test_numbers_of_a_probe_stand_in_the_layout(tmp_path):
    """Table 14 on the embedded model: its layer 0 beside the published one, layers that are not printed left out."""
    words = ["model=reference", "task=ruler/niah_single_1", "task.context_length=384", "task.samples=1", "budget=64"]
    out = tmp_path / "page.txt"
    assert main(["paper", "lava/table14", *words, f"results.dir={tmp_path}", "--out", str(out)]) == 0
    ours, published = out.read_text().split("published\n")[0], out.read_text().split("published\n")[1]
    lines = [line.split()[:-1] for line in ours.splitlines() if line.startswith("0 ") or line.startswith("  ")]
    assert ["0", "AdaKV"] in lines and lines[-1] == ["LAVa"] and not any("31" in line for line in lines)
    assert "31" in published and "147.16" in published


LAVA = {  # Section 5.1 and Appendix D
    "lava/table6": {"Qwen2.5-7B-Instruct"},
    "lava/table7": {"Qwen2.5-14B-Instruct", "Qwen2.5-32B-Instruct"},
    "lava/table8": {"Meta-Llama-3-8B-Instruct"},
    "lava/table9": {"Mistral-7B-Instruct-v0.2"},
}


@pytest.mark.parametrize("name", LAVA)
def test_tables_of_lava_without_printed_numbers_run_with_the_stated_models(name):
    runs = runs_of(name)
    assert {path.rpartition("/")[2] for run in runs for path in values(run, "model.path")} == LAVA[name]
    policies = {policy for run in runs for policy in values(run, "policy")}
    assert policies == {"full", "snapkv", "pyramidkv", "ada_snapkv", "ada_pyramidkv", "cake", "lava"}  # Section 5.1
    budgets = {budget for run in runs for budget in values(run, "budget")}
    assert budgets == ({"1024"} if name.endswith("9") else {"128", "256", "512", "1024"})
    tasks = {task for run in runs for task in values(run, "task")}
    assert len(tasks) == (1 if name.endswith("9") else 21)


KVZIP = {  # Appendix, Individual Dataset Performance
    "kvzip/qwen14b": "Qwen2.5-14B-Instruct-1M",
    "kvzip/llama8b": "Llama-3.1-8B-Instruct",
    "kvzip/gemma12b": "gemma-3-12b-it",
    "kvzip/llama8b_w8a8kv4": "Llama-3-8B-Instruct-Gradient-1048k",
    "kvzip/llama3b": "Llama-3.2-3B-Instruct",
    "kvzip/multi_task": "Qwen2.5-7B-Instruct-1M",
    "kvzip/ruler": "Qwen3-8B",
}


@pytest.mark.parametrize("name", KVZIP)
def test_figures_of_kvzip_run_with_their_models(name):
    item, runs = item_of(name), runs_of(name)
    assert {path.rpartition("/")[2] for run in runs for path in values(run, "model.path")} == {KVZIP[name]}
    tasks = {task for run in runs for task in values(run, "task")}
    if name == "kvzip/multi_task":
        assert tasks == {"scbench/summary_with_needles", "scbench/repoqa_and_kv"}
    elif name == "kvzip/llama3b":  # it cannot solve SCBench
        assert tasks == {"squad", "gsm8k", "needle/official"}
    elif name != "kvzip/ruler":
        assert len({task for task in tasks if task.startswith("scbench/")}) == 9
    if name != "kvzip/ruler":
        assert len(values(item.settings, "budget")) == 10  # 0.1 to 1.0


@pytest.mark.parametrize(
    "name",
    [name for name in names() if name.startswith("kvzip/") and type(item_of(name)) is Item and item_of(name).all_runs],
)
def test_items_of_kvzip_have_its_ratios_windows_and_samples(name):
    """Algorithm 1 scores the context's pairs; Baseline Methods: window 32, 16 for examples shorter than 1K tokens.

    eval.py --num 100; results/parse.py averages the questions of a context, then the contexts.
    """
    for run in runs_of(name):
        assert name == "kvzip/ruler" or values(run, "policy.budget_span") == ["context"]
        if {"snapkv", "pyramidkv"} & set(values(run, "policy")) and name != "kvzip/ruler":
            short = {"squad", "gsm8k"} & set(values(run, "task")) or values(run, "task.context_length") == ["500"]
            assert values(run, "policy.window") == ["16" if short else "32"]
    shared = [run for run in runs_of(name) if {"squad", "scbench"} & {t.partition("/")[0] for t in values(run, "task")}]
    for run in shared:
        assert values(run, "task.contexts") == ["100"] and int(values(run, "task.samples")[0]) == 1000
        assert values(run, "task.cut_last") == (["false"] if values(run, "task") == ["squad"] else [])
    assert item_of(name).mean_over == ("contexts" if shared else "questions")


def test_table_12_reads_all_rows_with_the_scorer_and_the_pyramids_of_lavas_code():
    """Its published answers are named pyram_beta_5; 154 / 229 = 67.2 % and 13 / 200 = 6.5 % are of all rows."""
    for run in runs_of("lava/table12"):
        assert values(run, "task.scorer") == ["loose"] and int(values(run, "task.samples")[0]) >= 229
        is_pyramid = {"pyramidkv", "ada_pyramidkv"} & set(values(run, "policy"))
        assert values(run, "policy.layers.beta") == (["5"] if is_pyramid else [])


@pytest.mark.parametrize("name", ["caote/table5", "caote/table13", "caote/figure2"])
def test_needles_of_caote_are_500_right_or_wrong(name):
    for run in runs_of(name):
        lengths = values(run, "task.context_length")
        assert len(lengths) * len(values(run, "task.depth")) == 500 and max(map(int, lengths)) == 32000
        assert values(run, "task.scorer") == ["inclusion"]


def test_repoqa_is_short_for_the_model_of_8k():
    """README of KVzip: scbench_repoqa_short for LLaMA3-8B-W8A8KV4."""
    lengths = {
        task: tuple(values(run, "task.length"))
        for run in runs_of("kvzip/llama8b_w8a8kv4")
        for task in values(run, "task")
        if task.startswith("scbench/")
    }
    assert {task for task, length in lengths.items() if length == ("short",)} == {"scbench/repoqa"}
    tiny = {task for task, length in lengths.items() if length == ("tiny",)}
    assert tiny == {"scbench/kv", "scbench/prefix_suffix", "scbench/mf"} and len(lengths) == 9


def test_ruler_of_kvzip_is_that_of_kvpress_leaderboard():
    """evaluation/leaderboard.sh: 4096; ratios 0.25 to 0.875; SnapKVPress: window 64, average pool 5, pooled by head."""
    runs = runs_of("kvzip/ruler")
    for run in runs:
        assert values(run, "task") == ["ruler_published"] and values(run, "task.context_length") == ["4096"]
        assert values(run, "budget") == ["0.125", "0.25", "0.5", "0.75"]
        if {"snapkv", "pyramidkv", "ada_snapkv"} & set(values(run, "policy")):
            assert values(run, "policy.window") == values(run, "policy.recent") == ["64"]
            assert values(run, "policy.pool") == ["{kind:avg,size:5}"]
            assert values(run, "policy.order") == ["[pool,group]"]
    (kvzip,) = runs_of("kvzip/ruler", policy="kvzip")
    assert (values(kvzip, "policy.sink"), values(kvzip, "score.chunk")) == (["4"], ["2048"])


@pytest.mark.slow
def test_the_head_maps_have_duo_attention_and_other_sources(tmp_path, capsys):
    """The caption: DuoAttention's scores, ours of En.QA, and (c) to (e) of other data, Retr.KV among them."""
    (duo,) = runs_of("kvzip/head_scores", policy="duo_attention")
    assert values(duo, "score") == ["head_table"]
    (own,) = runs_of("kvzip/head_scores", policy="kvzip")
    assert {"scbench/qa_eng", "scbench/kv"} < set(values(own, "task")) and len(values(own, "task")) == 4
    table = tmp_path / "heads.tsv"
    shares = [0.25, 0.75, 0.5, 0.0][:KV_HEADS]
    table.write_text(("\t".join(map(str, shares)) + "\n") * LAYERS)
    words = ["model=reference", "task=ruler/niah_single_1", "task.context_length=768", "task.samples=2"]
    words += [f"score.path={table}", f"results.dir={tmp_path}", "--format", "csv"]
    assert main(["paper", "kvzip/head_scores", *words]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    ours = [float(line["mean"]) for line in lines if line["policy"].startswith("duo_attention")]
    assert ours == shares * LAYERS


def test_low_ratios_of_kvzip_run_on_short_examples():
    """A prompt of 59 tokens of which 26 are head: ratio 0.1 of the other 33 is 3 pairs, beside the head."""
    words = parse(["budget=0.1", "model=reference"])
    cells = [entry.cell for entry in cells_of_item(item_of("kvzip/curves_gsm8k"), words).entries]
    assert {cell.policy.name for cell in cells} == {"kvzip", "h2o_kvzip", "snapkv", "pyramidkv"}
    for cell in cells:
        policy = cell.policy.resolve(26, 59, cell.budget)
        assert policy.pairs(cell.budget, 59) == 26 + 3
        assert policy.protected_tail <= 3  # the window's 16 newest tokens as far as the budget holds them
