"""From a composed configuration to a cell: `_target_` names the class, pydantic checks and converts its fields."""

from dataclasses import fields
from functools import lru_cache
from typing import Any

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from kvbench import paths
from kvbench.budget import parse_budget
from kvbench.cli.errors import closest
from kvbench.plan import Cell
from kvbench.schedule import Schedule

COLUMNS = ("variant", "layout")
"""Fields of a policy that have a column of their own in every row."""


def cell(config: DictConfig) -> Cell:
    """The cell of a composed configuration. Raises ValueError, in one line, for the first value that is not legal."""
    tree = _resolved(config)
    policy = build("policy", tree["policy"])
    takes_score = "score" in policy.takes
    return Cell(
        model=build("model", tree["model"]),
        task=build("task", tree["task"]),
        policy=policy,
        score=build("score", tree["score"]),
        budget=parse_budget(tree["budget"] if "budget" in policy.takes else "1.0"),
        schedule=_validated(Schedule, "schedule", tree["schedule"]),
        seed=_validated(int, "seed", tree["seed"]),
        policy_label=_label("policy", tree),
        score_label=_label("score", tree) if takes_score else None,
    )


def build(group: str, node: dict[str, Any]) -> Any:
    """An instance of the class that `_target_` names, its fields checked and converted by their annotations."""
    target = get_class(node["_target_"])
    return _validated(target, group, {key: value for key, value in node.items() if key != "_target_"})


def _validated(target: Any, group: str, values: Any) -> Any:
    if isinstance(values, dict):
        legal = [field.name for field in fields(target) if field.init]
        for key in values:
            if key not in legal:
                raise ValueError(f"unknown setting {group}.{key}: {closest(key, legal)}")
        texts = {field.name for field in fields(target) if field.type is str}
        values = {key: _as_written(key, value, key in texts) for key, value in values.items()}
    try:
        return _adapter(target).validate_python(values)
    except ValidationError as error:
        raise ValueError(_first(group, error)) from None


@lru_cache
def _adapter(target: Any) -> TypeAdapter[Any]:
    return TypeAdapter(target)


def _as_written(key: str, value: Any, text: bool) -> Any:
    """`policy.heads=uniform` is short for `policy.heads.kind=uniform`; `task.era=2026` is a text, not a number."""
    if key in ("heads", "layers") and isinstance(value, str):
        return {"kind": value}
    return str(value) if text and isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _first(group: str, error: ValidationError) -> str:
    """The first complaint, as `policy.window=abc: Input should be a valid integer`."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return str(first.get("ctx", {})["error"])
    where = ".".join((group, *(str(part) for part in first["loc"])))
    return f"{where}={first['input']}: {first['msg']}".replace("Input should be", "legal:")


def _resolved(config: DictConfig) -> dict[str, Any]:
    try:
        tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        key = error.full_key or "a setting"
        raise ValueError(f"{key} has no default: add {key}=VALUE to the command") from None
    except OmegaConfBaseException as error:
        raise ValueError(str(error).splitlines()[0]) from None
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _label(group: str, tree: dict[str, Any]) -> str:
    """The name of a policy or score, followed by every setting that is not its file's default."""
    name = tree[group]["name"]
    file = paths.conf() / group / f"{name}.yaml"
    default = OmegaConf.create(OmegaConf.load(file) if file.exists() else {})
    assert isinstance(default, DictConfig)
    node = default.get(group, default)
    resolved = OmegaConf.to_container(OmegaConf.create({**tree, group: node}), resolve=True)
    assert isinstance(resolved, dict)
    usual, actual = _flat(resolved[group]), _flat(tree[group])
    changed = [f"{key}={value}" for key, value in actual.items() if usual.get(key) != value and key not in COLUMNS]
    return " ".join((name, *changed))


def _flat(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix.rstrip("."): ",".join(map(str, node)) if isinstance(node, list) else node}
    return {key: value for name, child in node.items() for key, value in _flat(child, f"{prefix}{name}.").items()}
