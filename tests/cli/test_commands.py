"""The commands around a run: plan, list, report, doctor, help, and the settings of a cell."""

import json
import re
from pathlib import Path

import pytest
import yaml

from kvbench.cli.list import GROUPS
from kvbench.cli.main import declared
from kvbench.config.compose import combinations
from kvbench.config.entries import flat, options
from kvbench.config.overrides import format_value, parse
from kvbench.records import COLUMNS
from tests.cli.conftest import Command, rows_of
from tests.plugins import made_up


def test_help_wins_over_other_flags_and_words(kvbench: Command, tmp_path: Path) -> None:
    for words in (["--shard", "1/8"], ["--cfg", "job"], ["policy=snapvk"], ["--nothing"]):
        assert kvbench("run", *words, "--help").out == kvbench("run", "--help").out
    assert kvbench("compare", "a", "--nothing", "-h").out == kvbench("help", "compare").out == kvbench("compare").out
    assert kvbench("compare").code == 2
    of_rows = kvbench("report", "rows", "--help").out
    assert of_rows == kvbench("help", "report", "rows").out
    assert of_rows.startswith("kvbench report rows ") and "report table [" not in of_rows
    assert "--partial" in of_rows and "--anchor" not in of_rows and "Exit code 4" in of_rows
    assert list(tmp_path.iterdir()) == []


def test_the_settings_of_one_cell_are_printed(kvbench: Command, tmp_path: Path) -> None:
    """Of what would run: a policy that takes no score is shown with its own, whatever it is crossed with."""
    job = kvbench("run", "--cfg", "job", "policy=h2o_obcache", "score=obcache_key", "policy.window=8", "seed=7")
    config = yaml.safe_load(job.out)
    assert config["policy"]["window"] == 8 and config["score"]["name"] == "obcache_key" and "hydra" not in config
    assert config["task"]["seed"] == 7, "interpolations are replaced"
    shown = kvbench("run", "--cfg", "job", "policy='streaming_llm'", "score=attn", "results.dir=my runs")
    config = yaml.safe_load(shown.out)
    assert shown.code == 0 and config["score"]["name"] == "recency" and config["results"]["dir"] == "my runs"
    assert list(tmp_path.iterdir()) == []


def test_all_settings_are_listed_with_the_values_of_a_line(kvbench: Command, tmp_path: Path) -> None:
    whole = kvbench("list", "settings")
    assert whole.code == 0 and "policy: ada_pyramidkv, ada_snapkv" in whole.out
    assert re.search(r"^  schedule\.evict_after=prompt +prompt: the question", whole.out, re.MULTILINE)
    narrowed = kvbench("list", "settings", "policy", "schedule", "policy=h2o", "policy.window=9").out
    assert {line.split(".")[0].strip() for line in narrowed.splitlines()} == {"policy", "schedule"}
    assert "policy.window=9 " in narrowed
    told = json.loads(kvbench("list", "settings", "policy", "policy.window=9", "--json").out)
    assert {line["key"]: line["value"] for line in told}["policy.window"] == "9"
    refusals = {"polcy": "no setting begins with polcy: did you mean policy?", "budget=1,2": "lists 2 values"}
    for word, message in refusals.items():
        refused = kvbench("list", "settings", word)
        assert refused.code == 2 and message in refused.err
    assert list(tmp_path.iterdir()) == []


def test_a_dry_plan_says_what_slurm_would_get(
    kvbench: Command, tiny: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without SLURM, and nothing is written. Two shards of three prompts are two and one."""
    pytest.importorskip("submitit")
    words = ("policy=full,snapkv", "budget=0.2", "launcher.shards=2", "launcher.time=61", "launcher.memory_gb=1.5")
    assert kvbench("run", *tiny, *words[:2]).code == 0
    monkeypatch.setenv("PATH", "/nowhere")
    planned = kvbench("plan", *tiny, *words, "results.dir=new", "launcher=slurm", "--dry")
    assert planned.code == 0 and not Path("new").exists()
    heading, columns, first, second, hours, time, memory, *script = planned.out.splitlines()
    assert heading == "2 tasks, 16 at a time, 1 GPU each; nothing is submitted"
    assert columns.split() == ["task", "shard", "model", "prompts", "rows", "time"]
    assert first.split()[:2] == ["0", "1/2"] and first.split()[-4:] == ["2", "4", "not", "known"]
    assert second.split()[:2] == ["1", "2/2"] and second.split()[-4:] == ["1", "2", "not", "known"]
    assert hours == "GPU hours: not known, at most 2.03 before a task is requeued"  # 2 tasks of 61 minutes
    assert (
        "launcher.time=61 (61 minutes)" in time and "caches of at most" in memory and memory.endswith("memory_gb=1.5")
    )
    for line in ("array=0-1%2", "time=61", "mem=1536MB", "gpus-per-node=1"):
        assert f"#SBATCH --{line}" in script
    assert "submitit.core._submit" in script[-1]
    more = kvbench("plan", *tiny, *words, "task.samples=6", "launcher=slurm", "--dry").out
    assert "about " in more.splitlines()[2] and more.splitlines()[4].startswith("GPU hours: about ")
    both = kvbench("plan", *tiny, *words, "task.samples=6", "launcher=slurm", "launcher.time=1:01:00").out
    assert "of 12 rows are in" in both and "launcher.time=1:01:00 (61 minutes)" in both and "#SBATCH --time=61" in both
    done = kvbench("plan", *tiny, *words, "launcher=slurm", "--dry")
    assert done.out == "all rows are there: nothing would be submitted\n"
    refused = kvbench("plan", *tiny, *words[:2], "--dry")
    assert refused.code == 2 and "--dry goes with launcher=slurm, not with launcher=none" in refused.err


QUEUE = """
from dataclasses import dataclass

from kvbench.run.launch.launcher import Launcher
from kvbench.run.launch.request import SubmitRequest


@dataclass(frozen=True)
class Queue(Launcher):
    submits = True
    name: str = "queue"
    parts: int = 3

    def launch(self, work):
        return 0

    def request(self, results):
        return SubmitRequest(self.parts, 2, 0, "1 h", 60, 5, None, lambda tasks: f"enqueue {tasks} {results.path}")


class Silent(Queue):
    def request(self, results):
        return None
"""


def test_a_launcher_of_a_plugin_says_what_it_would_submit(
    kvbench: Command, tiny: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SLURM's does; one that submits and does not say what has a plan, and no dry one."""
    files = {"__init__.py": QUEUE} | {
        f"conf/launcher/{name}.yaml": f"says: a queue\n_target_: queueing.{name.title()}\nname: {name}\n"
        for name in ("queue", "silent")
    }
    monkeypatch.syspath_prepend(str(made_up(tmp_path / "site", "queueing", files)))
    words = ("plan", *tiny, "policy=full", "results.dir=new")
    dry = kvbench(*words, "launcher=queue", "--dry")
    assert dry.code == 0 and not Path("new").exists(), dry.err
    assert dry.out.startswith("3 tasks, 2 at a time, 0 GPUs each; nothing is submitted\n")
    assert "launcher.time=1 h (60 minutes), then requeued (5 times" in dry.out
    assert dry.out.rstrip().endswith("enqueue 3 new")
    whole = kvbench(*words, "launcher=queue").out
    assert dry.out in whole and len(whole) > len(dry.out) and "enqueue" not in kvbench(*words).out
    silent = kvbench(*words, "launcher=silent", "--dry")
    assert silent.code == 2 and "not with launcher=silent" in silent.err
    assert kvbench(*words, "launcher=silent").code == 0


def test_a_budget_in_bytes_is_held_and_recorded_as_it_was_asked(kvbench: Command, tiny: tuple[str, ...]) -> None:
    words = (*tiny, "policy=streaming_llm", "budget=16KiB", "task.samples=1")
    assert re.search(r"\b16KiB \(\d+ tokens\)", planned := kvbench("plan", *words).out), planned
    assert kvbench("run", *words).code == 0
    (row,) = rows_of(Path("out"))
    assert row.budget == "16KiB" and row.cache_bytes is not None and row.kept_tokens is not None
    assert row.cache_bytes <= 2**14 < row.cache_bytes * (row.kept_tokens + 1) / row.kept_tokens
    assert f"16KiB ({row.kept_tokens:.0f} tokens)" in planned


def test_plan_counts_and_runs_nothing(kvbench: Command, tiny: tuple[str, ...], tmp_path: Path) -> None:
    lists = ("policy=full,h2o_obcache", "score=attn,obcache_joint", "budget=0.1,0.3")
    before = kvbench("plan", *tiny, *lists)
    assert before.code == 0 and "0 of 15 rows are in out" in before.out
    assert "prefill: 3 prompts, at most 1536 tokens (7680 without sharing)" in before.out
    assert "memory: the full cache at most 0.1 MiB; the 5 largest cells, decoded together, at most 0." in before.out
    assert "MiB; observed queries and rankings at most 0." in before.out
    assert list(tmp_path.iterdir()) == []
    alone = kvbench("plan", *tiny, "policy=h2o_obcache", "budget=0.1,0.3", "schedule.prefill_block=64")
    assert "2 cells evict during the prefill, so each reads its own prompts: they read at most 3072 tokens" in alone.out
    assert "with a shared prefill it would be 1536" in alone.out
    kvbench("run", *tiny, "policy=h2o_obcache", "budget=0.1")
    after = kvbench("plan", *tiny, *lists)
    assert "3 of 15 rows are in out" in after.out
    assert sum("3/3" in line for line in after.out.splitlines()) == 1


@pytest.mark.parametrize(("what", "group"), GROUPS.items())
def test_list_names_what_can_be_asked_for(kvbench: Command, what: str, group: str) -> None:
    """Every file of a group, in a line of its own; a long list says what a method was verified against."""
    finished = kvbench("list", what)
    listed = [line.split()[0] for line in finished.out.splitlines() if line and line[0] != " "]
    assert finished.code == 0 and listed == options(group) and "Verified:" not in finished.out
    if what in ("policies", "scores"):
        long = kvbench("list", what, "--long")
        assert long.code == 0 and long.out.count("Verified:") == len(options(group))


@pytest.mark.parametrize("protocol", ["common", "paper"])
def test_what_is_listed_is_what_runs(kvbench: Command, protocol: str) -> None:
    """Every default of every policy under a protocol; where the other protocol has another, both are shown."""
    listed = json.loads(kvbench("list", "policies", f"protocol={protocol}", "--json").out)
    other = {"common": "paper", "paper": "common"}[protocol]
    assert len(listed) == len(options("policy"))
    for policy in listed:
        (runs,), (otherwise,) = (
            combinations(parse([f"policy={policy['name']}", f"protocol={name}"])) for name in (protocol, other)
        )
        here, there = dict(flat(runs)), dict(flat(otherwise))
        for setting in policy["settings"]:
            key, value = setting["key"], setting["default"]
            if value and key in here and key in there:
                assert here[key] == yaml.safe_load(value.replace(",", ", ").replace(":", ": ")), setting
                differs = here[key] != there[key]
                assert setting["otherwise"] == (f"protocol={other}: {format_value(there[key])}" if differs else "")
    assert any(setting["otherwise"] for policy in listed for setting in policy["settings"])


def test_a_list_shows_both_protocols_and_every_report(kvbench: Command) -> None:
    paper, common = (kvbench("list", "policies", "snapkv", *words).out for words in ((), ("protocol=common",)))
    assert "policy.window=16   # protocol=paper: 32" in common and "policy.recent=16   # protocol=paper: 32" in common
    assert "policy.window=32   # protocol=common: 16" in paper
    assert kvbench("list", "policies", "protocol=fair").code == kvbench("list", "scores", "protocol=paper").code == 2
    reports = declared("report").verbs
    assert [line.split()[0] for line in kvbench("list", "reports").out.splitlines()] == list(reports)
    (overview,) = [line for line in kvbench("--help").out.splitlines() if line.strip().startswith("report ")]
    assert set(reports) <= set(re.findall(r"\w+", overview))
    assert kvbench("list", "reports", "table").code == 2
    assert [each["name"] for each in json.loads(kvbench("list", "columns", "--json").out)] == [*COLUMNS]
    assert kvbench("list", "columns", "kept_*").out.split()[0] == "kept_tokens"
    assert "did you mean" in kvbench("list", "columns", "kept_token").err
