"""Plans: cells named by what they are, grouped by what they share, reduced by what is done."""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path

import pytest

from kvbench.eviction.budget import FractionBudget, TokenBudget, parse_budget
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.attn import Attention
from kvbench.models.loading.spec import HASHED, ModelSpec, content_hash
from kvbench.run.cell import Cell
from kvbench.run.eviction_method import EvictionMethod
from kvbench.run.plan import PrefillGroup, plan
from kvbench.tasks.ruler.niah import Niah
from tests.questions import Questions

NOISE = {"name": "ruler/niah_single_1", "haystack": "noise", "keys": "words", "values": "numbers"}
TASK = Niah(**NOISE, context_length=512, samples=4)


@pytest.fixture
def base_cell(tmp_path: Path) -> Cell:
    """A cell of a model folder with just enough files to have a hash."""
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_text(name)
    model = ModelSpec("hf", str(tmp_path))
    method = EvictionMethod(Policy("h2o_obcache"), Attention(), parse_budget("0.1"), "h2o_obcache", "attn")
    return Cell(model, TASK, method, Schedule(), 42)


def test_samples_labels_and_places_are_not_in_its_name(base_cell: Cell, tmp_path: Path) -> None:
    """More samples of a cell are the same cell, and a model folder may move."""
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (moved / name).write_text(name)
    for other in (
        replace(base_cell, task=replace(TASK, samples=9)),
        base_cell.with_method(policy_label="mine"),
        replace(base_cell, model=replace(base_cell.model, path=str(moved))),
    ):
        assert other.id == base_cell.id


def test_a_models_bytes_are_in_its_name(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "tokenizer.json", "notes.txt"):
        (tmp_path / name).write_text(name)
    before = content_hash(tmp_path, HASHED)
    (tmp_path / "notes.txt").write_text("changed")
    assert content_hash(tmp_path, HASHED) == before
    (tmp_path / "model.safetensors").write_text("changed")
    assert content_hash(tmp_path, HASHED) != before


def test_a_description_says_whether_there_is_a_chat_template(base_cell: Cell, tmp_path: Path) -> None:
    assert base_cell.description["model"]["chat_template"] is False
    for name, text in (("tokenizer_config.json", '{"chat_template": "{{ x }}"}'), ("chat_template.jinja", "{{ x }}")):
        folder = tmp_path / name
        folder.mkdir()
        for other in ("config.json", "model.safetensors", "tokenizer.json"):
            (folder / other).write_text(other)
        (folder / name).write_text(text)
        templated = replace(base_cell, model=replace(base_cell.model, path=str(folder)))
        assert templated.description["model"]["chat_template"] is True


def test_cells_that_read_the_same_prompts_are_one_group(base_cell: Cell) -> None:
    cells = [
        base_cell,
        base_cell.with_method(budget=parse_budget("0.5")),
        replace(base_cell, task=replace(TASK, context_length=1024)),
        base_cell.with_method(policy=Policy("snapkv", window=32)),
        replace(base_cell, schedule=Schedule("context")),
        base_cell,
        *(replace(base_cell, schedule=Schedule(prefill_block=16), seed=seed) for seed in (1, 2)),
    ]
    planned = plan(cells, recorded=set())
    assert [len(group.cells) for group in planned.groups] == [3, 1, 1, 1, 1], "whoever evicts from blocks reads alone"
    assert (planned.rows, planned.rows_to_do, planned.prefills_to_do) == (28, 28, 20)


def test_what_is_done_is_left_out(base_cell: Cell) -> None:
    other = base_cell.with_method(budget=parse_budget("0.5"))
    done = {(base_cell.id, 0), (other.id, 0), (base_cell.id, 2)}
    (group,) = plan([base_cell, other], done).groups
    assert missing_of(group) == [{1: [base_cell.id, other.id]}, {2: [other.id]}, {3: [base_cell.id, other.id]}]


def missing_of(group: PrefillGroup) -> list[dict[int, list[str]]]:
    """What each unit makes: sample and cell ids."""
    return [{sample: [cell.id for cell in cells] for sample, cells in job.missing.items()} for job in group.jobs]


def test_questions_about_a_context_are_one_unit_when_it_is_read_alone(base_cell: Cell) -> None:
    """Samples 0, 3 and 6 ask about one context, 1 and 4, 2 and 5 about others."""
    task = Questions(contexts=3, samples=7)
    context = replace(base_cell, task=task, schedule=Schedule("context"))
    other = replace(context.with_method(budget=parse_budget("0.5")), task=replace(task, samples=5))
    planned = plan([context, other], {(context.id, 0), (other.id, 3), (context.id, 4)})
    (group,) = planned.groups
    assert missing_of(group) == [
        {0: [other.id], 3: [context.id], 6: [context.id]},
        {1: [context.id, other.id], 4: [other.id]},
        {2: [context.id, other.id], 5: [context.id]},
    ]
    assert (planned.rows, planned.rows_to_do, planned.prefills_to_do) == (12, 9, 3)
    whole = [replace(cell, schedule=Schedule("prompt")) for cell in (context, other)]
    assert plan(whole, set()).prefills_to_do == 7
    middle = replace(context, task=replace(task, truncation="middle", max_prompt_tokens=40))
    assert plan([middle], set()).prefills_to_do == 7  # where it cuts depends on the question


@pytest.mark.parametrize(
    ("schedule", "budget", "message"),
    [
        (Schedule("prompt", None, None), TokenBudget(60), "schedule.decode_every=null .* use schedule.decode_every=1"),
        (Schedule("context", None, 1), TokenBudget(60), "schedule.evict_after=context evicts before all of it is read"),
        (Schedule("prompt", 16, 1), TokenBudget(60), "schedule.prefill_block=16 evicts before all of it is read"),
        (Schedule("prompt", None, 1), FractionBudget(Decimal("0.5")), r"budget=0\.5 is a fraction of the prompt"),
        (Schedule("prompt", None, 1), TokenBudget(60), None),
    ],
)
def test_a_whole_prompt_is_kept_where_an_answer_is_evicted_from(
    base_cell: Cell, schedule: Schedule, budget: TokenBudget | FractionBudget, message: str | None
) -> None:
    cell = replace(
        base_cell.with_method(policy=replace(base_cell.policy, sink="prompt"), budget=budget), schedule=schedule
    )
    with (
        nullcontext() if message is None else pytest.raises(ValueError, match=f"keeps the whole prompt, but {message}")
    ):
        cell.check()


@dataclass(frozen=True)
class OfFiles(Niah):
    """A task that reads one file."""

    @property
    def files(self) -> tuple[str, ...]:
        return ("mine/a.txt",)


def test_a_tasks_bytes_are_in_its_name_and_their_place_is_not(base_cell: Cell, tmp_path: Path) -> None:
    for place, text in (("here", "a"), ("there", "a"), ("elsewhere", "b")):
        (tmp_path / place / "mine").mkdir(parents=True)
        (tmp_path / place / "mine" / "a.txt").write_text(text)
    here, there, elsewhere = (
        replace(base_cell, task=OfFiles(**NOISE, context_length=512, root=str(tmp_path / place)))
        for place in ("here", "there", "elsewhere")
    )
    assert here.id == there.id != elsewhere.id
    assert "data_sha256" in here.description["task"] and "data_sha256" not in base_cell.description["task"]
    with pytest.raises(FileNotFoundError, match=r"no file .*nowhere"):
        _ = replace(here, task=replace(here.task, root=str(tmp_path / "nowhere"))).id
