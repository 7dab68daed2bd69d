"""`kvbench.Bench` is the command line on values: the same cells, rows, folder, tables, figures and verdicts."""

import copy
import gc
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch

import kvbench
from kvbench.eviction.budget import TokenBudget
from kvbench.eviction.evict import Eviction
from kvbench.extras.view.page import write_page
from kvbench.notebook.bench import BenchResult
from kvbench.records import read_kept
from kvbench.report.compare.compare import compare, report_of
from kvbench.report.compare.paired_rows import sides
from kvbench.report.formats.emit import emitted
from kvbench.report.tables.table import print_table
from kvbench.run.code import Code
from kvbench.run.eviction_method import EvictionMethod
from kvbench.support.errors import UserError
from tests.models.families import tiny
from tests.models.tokenizers import of_bytes
from tests.notebook import given
from tests.notebook.given import MINE, Age

library: Any = kvbench
PROMPTS = [(f"The sky of day {day} is blue. " * 9 + "The sky is", "blue") for day in range(3)]
SETTINGS = {"task.max_new_tokens": 3}


def ignored(text: object) -> None:
    """Reports warn of nothing that matters here."""


@pytest.fixture(scope="module")
def model() -> tuple[Any, Any]:
    tokenizer = of_bytes(begin=True)
    return tiny("llama", vocab_size=len(tokenizer)), tokenizer


@pytest.fixture(scope="module")
def result(model: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("bench") / "rows"
    methods = ["snapkv", Age(), (MINE, "key_norm"), Eviction(MINE, Age(-1.0), TokenBudget(50))]
    yield library.Bench(*model).compare(methods, [0.3, "20KiB"], PROMPTS, results=folder, **SETTINGS)


def folder_of(result: Any) -> Path:
    return Path(result.frame.attrs["results"])


def test_every_method_has_every_budget_and_an_eviction_its_own(result: Any) -> None:
    cells = {*zip(result.frame["policy"], result.frame["score"], result.frame["budget"], strict=True)}
    named = {(policy, score if isinstance(score, str) else None, budget) for policy, score, budget in cells}
    mine, budgets = "mine window=8 recent=8", ("0.3", "20KiB")
    assert named == {
        ("full", None, "1.0"),
        *(("snapkv", score, budget) for score in ("attn", "age") for budget in budgets),
        *((mine, "key_norm", budget) for budget in budgets),
        (mine, "age sign=-1.0", "50"),
    }
    assert len(result.frame) == 3 * len(named) and result.frame["error"].isna().all()
    assert result.frame.groupby("sample")["prefill_seconds"].nunique().tolist() == [1, 1, 1], "they share prefills"


def test_tables_and_pages_are_those_of_the_command_line(result: Any, tmp_path: Path) -> None:
    print_table(folder_of(result), "text", text := io.StringIO(), warn=ignored)
    assert f"{result.table()!r}\n" == text.getvalue() and repr(result) == repr(result.table())
    assert "<table>" in result._repr_html_() and "<style>" not in result._repr_html_()
    write_page(folder_of(result), tmp_path / "folder.html", ignored)
    assert result.page(tmp_path / "page.html").read_text() == (tmp_path / "folder.html").read_text()
    assert len(result.table().frame) == 8 and r"\toprule" in result.table().to("latex")
    for figure in (result.tradeoff(x="bytes"), result.plot("kept", score="age")):
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_kept_positions_are_those_beside_the_rows(result: Any) -> None:
    kept = result.kept()
    assert kept == read_kept(folder_of(result)) and len(kept) >= 21
    row = result.frame[result.frame["score"] == "age sign=-1.0"].iloc[0]
    assert kept[row["cell"], row["sample"]].positions(0, 0)[:42] == list(range(42)), "the oldest, and 8 newest"


def test_two_methods_are_compared_as_by_the_command(result: Any) -> None:
    words = ["policy=snapkv,score=attn", "policy=snapkv,score=age"]
    of_command = emitted(report_of(compare(*sides(words, str(folder_of(result)), ignored))), "csv")
    for pair in (("snapkv", Age()), tuple(words)):
        assert result.compare(*pair).to("csv") == of_command
    line = result.compare("snapkv", (MINE, "key_norm")).frame.iloc[0]
    assert line["n"] == 3 and line["low"] <= line["difference"] <= line["high"] and line["verdict"] == "inconclusive"


def test_rows_are_shared_with_a_run(result: Any, model: tuple[Any, Any]) -> None:
    words = {"model": library.Bench(*model).model, "results.dir": folder_of(result), "reference": "none", **SETTINGS}
    frame = library.run(data=PROMPTS, policy="snapkv", score=Age(), budget=0.3, **words)
    same = result.frame[result.frame["cell"] == frame["cell"][0]]
    assert frame["decode_seconds"].tolist() == same["decode_seconds"].tolist()


def test_a_model_in_memory_answers_as_its_folder_and_stays_as_it_was(
    result: Any, model: tuple[Any, Any], tmp_path: Path
) -> None:
    for part in model:
        part.save_pretrained(tmp_path / "model")
    given, _ = model
    before = {name: type(part) for name, part in given.named_modules()}
    answer = given.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)
    of_folder = library.Bench(tmp_path / "model").compare("snapkv", 0.3, PROMPTS, **SETTINGS).frame
    chosen = result.frame[result.frame["cell"].isin(_cells(result, "snapkv", "attn", "0.3"))]
    of_folder = of_folder[of_folder["policy"] == "snapkv"]
    for column in ("value", "prediction", "kept_sha256", "prompt_sha256", "top2_margin", "cache_bytes"):
        assert of_folder[column].tolist() == chosen[column].tolist(), column
    assert {name: type(part) for name, part in given.named_modules()} == before
    assert given.config._attn_implementation != "kvbench"
    assert given.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False).equal(answer)


def _cells(result: Any, policy: str, score: str, budget: str) -> set[str]:
    frame = result.frame
    return {*frame["cell"][(frame["policy"] == policy) & (frame["score"] == score) & (frame["budget"] == budget)]}


def test_a_model_with_other_weights_has_other_cells(model: tuple[Any, Any]) -> None:
    given, tokenizer = copy.deepcopy(model[0]), model[1]
    bench = library.Bench(given, tokenizer)
    first = bench.model
    assert bench.model == first and bench.model.sha256() == library.Bench(*model).model.sha256()
    with torch.no_grad():
        given.lm_head.weight[0, 0] += 1
    assert bench.model.sha256() != first.sha256()


def test_rows_without_a_folder_live_as_long_as_their_result(model: tuple[Any, Any]) -> None:
    bench = library.Bench(*model)
    result = bench.compare("snapkv", 0.3, pandas.DataFrame(PROMPTS[:1], columns=["context", "answers"]), **SETTINGS)
    folder = folder_of(result)
    del bench
    gc.collect()
    assert result.kept() and folder.is_dir()
    del result
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"methods": ["snapkv", "snapvk"]},
            r"methods\[1\]='snapvk' is neither a policy nor a score: did you mean snapkv",
        ),
        ({"methods": [Age]}, r"score=Age is a class: give an object of it, score=Age\(\)$"),
        ({"methods": [3]}, r"methods\[0\]=int\(\.\.\.\): allowed: the name of a policy or score, an object"),
        ({"methods": []}, r"methods=\[\]: give at least one"),
        ({"budgets": [0.1, "much"]}, r"budgets\[1\]='much': allowed: a share of the prompt such as 0\.1"),
        ({"budgets": []}, r"budgets=\[\]: give at least one"),
        ({"budget": 0.1}, r"compare\(\) has no argument 'budget': give it as budgets=$"),
        ({"task": "jsonl"}, r"compare\(\) has no argument 'task': give it as data=$"),
        ({"data": ["Who?"]}, r"data\[0\] is a str without an answer"),
    ],
)
def test_errors_name_the_arguments_of_python(model: tuple[Any, Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}") as raised:
        library.Bench(*model).compare(**{"methods": "snapkv", "data": PROMPTS, **arguments})
    assert "override" not in str(raised.value).lower()


def test_rows_of_other_code_and_failed_ones_have_arguments_of_python(
    model: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal names no flag, and what it names works; a page and a format are refused without one too."""
    bench = library.Bench(*model)
    call = {"methods": "snapkv", "budgets": [0.3, 0.001], "data": PROMPTS, "results": tmp_path, **SETTINGS}
    before = bench.compare(**call)
    failed = before.frame["error"].notna()
    assert {*before.frame["budget"][failed]} == {"0.001"}
    again = bench.compare(**call, retry_errors=True).frame
    assert again["replaces"].notna().equals(again["error"].notna())
    code = Code({"score": "0" * 64})
    monkeypatch.setattr(EvictionMethod, "code", lambda *parts: code)
    sweep = {"data": PROMPTS, "policy": "snapkv", "budget": 0.3, "model": bench.model, "results.dir": tmp_path}
    calls = (lambda **more: bench.compare(**call, **more), lambda **more: library.run(**sweep, **SETTINGS, **more))
    for run in calls:
        with pytest.raises(UserError, match='stale="rerun" makes them again, stale="keep" takes them') as raised:
            run()
        assert "--" not in str(raised.value)
    assert {*calls[0](stale="keep").frame["code"]}.isdisjoint({code.id})
    assert {*calls[0](stale="rerun").frame["code"]} == {code.id}
    refusals = (lambda: before.page("page.txt"), lambda: before.page("/no/x.html"), lambda: before.table().to("docx"))
    for refused in refusals:
        with pytest.raises(UserError, match=r"allowed: |name another file$") as raised:
            refused()
        assert "--" not in str(raised.value)


def test_what_is_no_model_or_no_method_of_a_result_is_refused(result: Any, model: tuple[Any, Any]) -> None:
    with pytest.raises(UserError, match=r"^model=LlamaForCausalLM\(\.\.\.\) needs its tokenizer"):
        library.Bench(model[0])
    with pytest.raises(UserError, match=r"^tokenizer=\w+\(\.\.\.\): a model that is given by name has its own$"):
        library.Bench("reference", model[1])
    missing = "^b='h2o_obcache' is not in this result, which has full, mine window=8 recent=8 age"
    with pytest.raises(UserError, match=missing):
        result.compare("snapkv", "h2o_obcache")


def test_objects_are_shown_by_what_they_are(model: tuple[Any, Any]) -> None:
    assert repr(library.Bench("reference")) == "Bench('reference')"
    assert repr(library.Bench(*model)) == "Bench(LlamaForCausalLM(...))"
    eviction = Eviction(MINE, Age(), TokenBudget(50))
    assert eval(repr(eviction), globals() | vars(given)) == eviction


def test_methods_that_extras_bring_are_listed_and_others_are_refused(model: tuple[Any, Any]) -> None:
    bench = library.Bench(*model)
    assert {"compare", "recommend"} <= {*dir(bench)} and "prompts" in str(bench.recommend.__doc__)
    assert "page" in dir(BenchResult(None))
    with pytest.raises(AttributeError, match=r"^Bench has no recommends, and no extra that is installed brings it"):
        bench.recommends()
    assert not hasattr(BenchResult(None), "recommend") and not hasattr(bench, "_page")


def test_a_recommendation_reads_prompts_of_python(model: tuple[Any, Any]) -> None:
    """That the command and the statistics are right is tested with them."""
    report = str(library.Bench(*model).recommend(PROMPTS, loss=50, policy="snapkv", budget=0.5, **SETTINGS))
    assert "3 prompts of at most" in report and "tolerated loss 50 points, no limit of memory" in report
    assert "snapkv" in report and "more prompts would decide it" in report
