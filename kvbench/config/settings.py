"""From composed settings to the parts of a cell: `_target_` names the class, pydantic checks and converts fields."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, get_args, get_type_hints

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from kvbench.config.compose import whole_parts
from kvbench.config.files import file_of
from kvbench.config.overrides import text_fields, written
from kvbench.eviction.policy import Policy
from kvbench.eviction.schedule import Schedule
from kvbench.eviction.scores.score import Score
from kvbench.models.loading.spec import ModelSpec
from kvbench.records import KeptDetail
from kvbench.report.loggers import Logger
from kvbench.run.launch import Launcher
from kvbench.support.errors import UserError
from kvbench.support.plugins import items
from kvbench.support.text import closest
from kvbench.tasks.task import Task

KINDS: dict[str, type] = {"policy": Policy, "score": Score, "task": Task, "model": ModelSpec}
"""What the class of a file must be."""
COLUMNS = ("variant", "layout")
"""Fields of a policy that have a column of their own in every row."""


LEGAL = {
    "policy.order": "[pool,group] or [group,pool]",
    "policy.pool": "null, or a kind and an odd size such as {kind:max,size:7}",
    "policy.heads": "the name of a kind, such as uniform",
    "policy.layers": "the name of a kind, such as uniform",
    "policy.window": "a valid integer such as 16, all, or a part such as {part:0.05,of:budget}",
    "policy.recent": "a valid integer such as 16, or a part such as {part:0.05,of:budget}",
    "schedule": "its settings, such as schedule.evict_after=prompt",
}
"""What can be written where the type's own words say nothing to a user."""

NEEDED = {
    "model.path": "FOLDER_OR_HUB_ID",
    "score.path": "FILE with a head table (full_attention_heads.tsv of DuoAttention, or kvbench heads writes one)",
}
"""What stands for the value of a setting without a default."""


def as_schedule(node: Any, policy: Policy) -> Schedule:
    """What is cut when; a policy that keeps everything has nothing to cut again."""
    schedule = validated(Schedule, "schedule", node)
    return schedule if "budget" in policy.takes else replace(schedule, prefill_block=None, decode_every=None)


@dataclass(frozen=True)
class Results:
    """Where rows go, what is written beside them about what their cells kept, and how the folder is shared.

    lease_seconds: without a heartbeat for so long a process has stopped, and others make what it was making.
    """

    dir: str
    kept: KeptDetail
    lease_seconds: float

    def __post_init__(self) -> None:
        if not self.lease_seconds > 0:
            raise UserError(f"results.lease_seconds={self.lease_seconds}: legal: a number above 0, such as 180")


def results_of(tree: Any) -> Results:
    """The results folder as it was written, and the detail. Raises ValueError for what is no path and no detail."""
    if not isinstance(tree, dict):
        raise UserError(f"results={written(tree)}: legal: results.dir=FOLDER, results.kept=none|lengths|positions")
    if not isinstance(tree["dir"], str) or not tree["dir"].strip():
        raise UserError(f"results.dir={written(tree['dir'])}: legal: a folder, such as results/runs")
    return validated(Results, "results", tree)


def launcher(config: dict[str, Any]) -> Launcher:
    """How a sweep is launched. Raises ValueError for the first setting that is not legal."""
    return build("launcher", resolved(OmegaConf.create({"launcher": config["launcher"]}))["launcher"])


def logger(config: dict[str, Any]) -> Logger:
    """Where rows are mirrored to. Raises ValueError for the first setting that is not legal."""
    return build("logger", resolved(OmegaConf.create({"logger": config["logger"]}))["logger"])


def build(group: str, node: dict[str, Any]) -> Any:
    """An instance of the class that `_target_` names, its fields checked and converted by their annotations.

    A part with a `_target_` of its own, such as the host of a score, is built first.
    """
    target = _class(group, node)
    parts = {
        key: build(f"{group}.{key}", value) if isinstance(value, dict) and "_target_" in value else value
        for key, value in node.items()
        if key != "_target_"
    }
    built = validated(target, group, parts)
    if group in KINDS and not isinstance(built, KINDS[group]):
        wanted = f"{KINDS[group].__module__}.{KINDS[group].__name__}"
        raise UserError(f"{_whose(group, node)}: {node['_target_']} is no {group}: derive it from {wanted}")
    return built


def _class(group: str, node: dict[str, Any]) -> Any:
    """The class that a part is built from. Raises ValueError, with the plugin's name, for one that does not load."""
    try:
        target = get_class(node["_target_"])
    except Exception as error:  # the code of others raises what it likes when it is imported
        cause = error.__cause__ or error
        said = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
        raise UserError(f"{_whose(group, node)}: {node['_target_']} does not load: {said}") from error
    if not is_dataclass(target):
        raise UserError(f"{_whose(group, node)}: {node['_target_']} is no dataclass: its fields are what can be set")
    return target


def _whose(group: str, node: dict[str, Any]) -> str:
    """What a part is called in a complaint about its code: by its file, and by the plugin that has it."""
    name = str(node.get("name", ""))
    found = items(group).get(name) if group in KINDS else None
    return str(found or f"{group} {name}").strip()


def label(group: str, built: Any, tree: dict[str, Any]) -> str:
    """The name of a policy or score, followed by every field that differs from what its file says or leaves open.

    Both are compared as built, with the same root settings (`seed`). `variant` and `layout` of a policy have a column.
    """
    node = file_of(group, built.name)
    left_open = {key: tree[group][key] for key, value in node.items() if value == "???"}
    usual = build(group, resolved(OmegaConf.create({**tree, group: node | left_open}))[group])
    changed = [(key, written(value)) for key, value in left_open.items()]
    changed += _changed(asdict(usual), asdict(built))
    return " ".join((built.name, *(f"{key}={value}" for key, value in changed if key not in COLUMNS)))


def _changed(usual: dict[str, Any], actual: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, now in actual.items():  # a part of another kind has other fields
        before = usual.get(key)
        if isinstance(now, dict):
            yield from _changed(before if isinstance(before, dict) else {}, now, f"{prefix}{key}.")
        elif before != now:
            yield f"{prefix}{key}", written(now).strip("[]")  # rich reads brackets as markup


def as_number(value: Any) -> str | int | float:
    """A budget as it can be parsed."""
    return value if isinstance(value, (str, int, float)) and not isinstance(value, bool) else written(value)


def validated(target: Any, group: str, values: Any) -> Any:
    """Values as `target` has them. Raises ValueError, in one line, for the first that is not legal."""
    if isinstance(values, dict):
        legal, texts = [field.name for field in fields(target) if field.init], text_fields(target)
        for key in values:
            if key not in legal:
                raise UserError(f"unknown setting {group}.{key}: {closest(key, legal)}")
        values = {key: _as_written(key, value, key in texts) for key, value in values.items()}
    try:
        built = _adapter(target).validate_python(values)
    except ValidationError as error:
        raise UserError(_first(target, group, values, error)) from None
    if isinstance(values, dict):
        _check_parts(group, values, built)
    return built


def _check_parts(group: str, values: dict[str, Any], built: Any) -> None:
    """pydantic passes over what a part does not know; a misspelt setting is no setting."""
    for key, value in values.items():
        part = getattr(built, key)
        if isinstance(value, dict) and is_dataclass(part):
            legal = [field.name for field in fields(part)]
            for name in value:
                if name not in legal:
                    raise UserError(f"unknown setting {group}.{key}.{name}: {closest(name, legal)}")
            _check_parts(f"{group}.{key}", value, part)


@lru_cache
def _adapter(target: Any) -> TypeAdapter[Any]:
    return TypeAdapter(target)


def _as_written(key: str, value: Any, text: bool) -> Any:
    """`policy.heads=uniform` is short for `policy.heads.kind=uniform`; `task.era=2026` is a text, not a number."""
    if key in ("heads", "layers") and isinstance(value, str):
        return {"kind": value}
    return str(value) if text and isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _first(target: Any, group: str, values: Any, error: ValidationError) -> str:
    """The first complaint, as `policy.window=abc: legal: a valid integer`."""
    errors = error.errors()
    if isinstance(values, dict) and errors[0]["loc"] and isinstance(part := values.get(str(errors[0]["loc"][0])), dict):
        kinds = _kinds(target, str(errors[0]["loc"][0]))
        chosen = kinds.get(part.get("kind", ""))
        if kinds and chosen is None:
            return f"{group}.{errors[0]['loc'][0]}.kind={written(part.get('kind'))}: legal: {', '.join(kinds)}"
        errors = [one for one in errors if chosen is None or chosen.__name__ in one["loc"]]
    first = errors[0]
    if first["type"] == "value_error":
        return str(first.get("ctx", {})["error"])
    path = (group, *(str(part) for part in first["loc"] if not _is_member(str(part))))
    whole = ".".join(path[:2])
    if whole in ("policy.order", "policy.window", "policy.recent") or (
        whole in LEGAL and first["type"] in ("dataclass_type", "missing", "dataclass_exact_type")
    ):
        return f"{whole}={written(values[path[1]] if path[1:] else values)}: legal: {LEGAL[whole]}"
    return f"{'.'.join(path)}={written(first['input'])}: {first['msg']}".replace("Input should be", "legal:")


def _kinds(target: Any, name: str) -> dict[str, type]:
    """The classes that a part of a policy can be, by their kind."""
    members = get_args(get_type_hints(target).get(name))
    return {member().kind: member for member in members if hasattr(member, "kind")}


def _is_member(part: str) -> bool:
    """Whether pydantic names a member of a union rather than a field."""
    return part in ("int", "float", "str") or part.startswith("literal[") or part[:1].isupper()


def resolved(config: DictConfig) -> dict[str, Any]:
    """A composed tree without interpolations. Raises ValueError for what is missing or cannot be resolved."""
    whole = OmegaConf.create(whole_parts(OmegaConf.to_container(config)))
    try:
        tree = OmegaConf.to_container(whole, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = error.full_key or "a setting"
        raise UserError(f"{key} has no default: add {key}={NEEDED.get(key, 'VALUE')} to the command") from None
    except OmegaConfBaseException as error:
        raise UserError(str(error).splitlines()[0]) from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}
