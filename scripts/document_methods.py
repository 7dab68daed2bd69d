"""Write what policies and scores are, and where they come from, into three pages, between the markers of each part.

    python scripts/document_methods.py   # rewrites methods.md, disagreements.md and merging's page

The files and the fields of the classes are the only source: a file says what a method is, what it was verified against
and what there is to know of a value; a field says what a setting means.
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from functools import cache
from inspect import getmodule
from itertools import product
from pathlib import Path
from typing import Any

from kvbench.cli.setting_help import help_of_allocations, help_of_steps, notes_of, words_of
from kvbench.config.compose import combinations, resolved
from kvbench.config.entries import ALLOCATION, MISSING, content, flat, options
from kvbench.config.overrides import format_value as as_typed
from kvbench.config.overrides import parse
from kvbench.config.policy_parts import kinds
from kvbench.config.settings import build
from kvbench.eviction.evict import check_host, reads_rows
from kvbench.eviction.incremental import check_steps
from kvbench.eviction.policy import Policy, TokenFraction
from kvbench.eviction.scores.score import Score
from kvbench.support.annotations import help_of
from kvbench.support.plugins import items
from kvbench.support.settings_file import Entry
from scripts.parts import with_parts
from tests import presses

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "methods.md"
EVIDENCE = PAGE.with_name("disagreements.md")
MERGING = Path(__file__).parents[1] / "kvbench" / "extras" / "merging" / "merging.md"
TABLE = Path(__file__).parents[1] / "tests" / "golden" / "heads" / "full_attention_heads.tsv"
BUDGETS = TABLE.with_name("budgets.npy")
PLACES = ("paper", "code", "kvpress")
"""Where a method has other defaults, in the order of the table's columns."""
SIGNS = {
    r"\bsum_([a-z])\b": r"Σ<sub>\1</sub>",
    r"-sum p log p": "-Σ p log p",
    r"\b(mean|var|softmax|lse)_([a-z]{1,2})\b": r"\1<sub>\2</sub>",
    r"\b([A-Za-z]'?)_([a-z]{1,2})\b": r"<i>\1</i><sub>\2</sub>",
    r"\^(\d)": r"<sup>\1</sup>",
    r"\^\(([^)]*)\)": r"<sup>\1</sup>",
    r"sqrt\((\w)\)": r"√\1",
    r"\balpha\b": "α",
    r"\bbeta\b": "β",
    r"\bgamma\b": "γ",
    r"\bepsilon\b": "ε",
    r"\btau(\d)": r"τ<sub>\1</sub>",
}
"""Patterns of a formula in a docstring, and how a page writes them."""


def entry(group: str, name: str) -> Entry:
    """What the file of a method says."""
    return words_of(items(group)[name])


def notes(group: str, name: str, texts: Mapping[str, str]) -> list[str]:
    """A line for each setting of a file about which it, or else its class, says something.

    texts: what the class says, by the full names of the settings.
    """
    texts, tree = {**texts, **notes_of(items(group)[name])}, content(items(group)[name])
    values = [(key, value) for key, value in flat(tree) if key in texts]
    return [
        f"- `{key}={'' if isinstance(value, dict) and value else as_typed(value)}`: {texts[key]}"
        for key, value in values
    ]


@cache
def composed(*words: str) -> dict[str, Any]:
    """The configuration of a command line, a head table where a score needs one."""
    (tree,) = combinations(parse(words))
    score = tree["score"]
    files = {
        "path": TABLE,
        "statistics": BUDGETS.with_name("queries.safetensors"),
        "gates": BUDGETS.with_name(f"{score['name']}.safetensors"),
    }
    score = score | {key: str(file) for key, file in files.items() if score.get(key) == MISSING}
    if score["name"] == "kvpress":  # any press: the page says nothing of it
        score["press"] = f"{presses.__name__}.Norms"
    policy = tree["policy"]
    if policy["name"] == "lukv":
        policy = policy | {"layers": policy["layers"] | {"path": str(BUDGETS)}}
    return resolved({**tree, "score": score, "policy": policy})


def policies() -> str:
    """A part for each policy: what it is, its defaults, its settings and what it was verified against."""
    parts = []
    for name in options("policy"):
        tree = composed(f"policy={name}")
        policy: Policy = build("policy", tree["policy"])
        defaults = f"Score `{tree['score']['name']}`; {described(policy)}." if policy.accepts else "Takes nothing."
        if (common := common_windows(name)) != windows(policy, build("score", tree["score"])):
            defaults += f" With `protocol=common`: {common}."
        if policy.accepts and (schedule := changed_schedule(tree["schedule"])):
            defaults += f" {schedule}."
        parts.append(_part(entry("policy", name), name, [defaults], notes("policy", name, {})))
    return "\n\n".join(parts)


def defaults() -> str:
    """Window, newest tokens that are kept, pooling and budget of each policy: here, and elsewhere by its file."""
    lines = [
        "| policy | default here | `protocol=common` | paper | official code | kvpress |",
        "|---|---|---|---|---|---|",
    ]
    for name in options("policy"):
        tree = composed(f"policy={name}")
        policy: Policy = build("policy", tree["policy"])
        if "budget" in policy.accepts:
            elsewhere = entry("policy", name).elsewhere
            score: Score = build("score", tree["score"])
            common = common_windows(name)
            common = "the same" if common == windows(policy, score) else common
            cells = [default(policy, score), common, *(" ".join(elsewhere.get(place, "").split()) for place in PLACES)]
            lines.append(
                " | ".join([f"| [{name}]({link('policy', name)})", *(cell.rstrip(".") for cell in cells)]) + " |"
            )
    return "\n".join(lines)


def policy_fields() -> str:
    """What every setting of a policy means."""
    lines = ["| setting | meaning |", "|---|---|"]
    parts, said = ("heads", "layers", *kinds()), help_of(Policy)
    said = said | help_of_allocations(said) | help_of_steps()
    texts = {key: text for key, text in said.items() if key.partition(".")[0] not in parts}
    texts |= {key: text for key, text in said.items() if key in parts}
    return "\n".join([*lines, *(f"| `policy.{key}` | {text} |" for key, text in texts.items())])


def verified() -> str:
    """What each method was verified against, by its file."""
    lines = ["| method | verified against |", "|---|---|"]
    for group in ("policy", "score"):
        for name in options(group):
            text = " ".join(entry(group, name).verified.split()).removesuffix(".")
            lines.append(f"| {group} [{name}]({link(group, name)}) | {text.replace('*', chr(92) + '*')} |")
    return "\n".join(lines)


def link(group: str, name: str) -> str:
    """Where a method is described: the second of two headings with one name, that of the score, has a number."""
    is_both = group == "score" and name in options("policy")
    return f"{PAGE.name}#{name}{'_1' * is_both}"


def common_windows(name: str) -> str:
    """Window, newest tokens and pooling of a policy with `protocol=common`."""
    tree = composed(f"policy={name}", "protocol=common")
    return windows(build("policy", tree["policy"]), build("score", tree["score"]))


def windows(policy: Policy, score: Score) -> str:
    """What `protocol` is about."""
    window = policy.window if reads_rows(policy, score) else "none"
    pool = "no pool" if policy.pool is None else f"{policy.pool.kind} pool {policy.pool.size}"
    recent = "the rest" if policy.recent == 0 and score.name == "recency" else recent_of(policy)
    return f"window {window}, recent {recent}, {pool}"


def recent_of(policy: Policy) -> str:
    """The newest tokens that a policy protects, in words."""
    return "half of the budget" if policy.recent == TokenFraction(0.5) else str(policy.recent)


def default(policy: Policy, score: Score) -> str:
    """The defaults of a policy as the table of defaults has them."""
    is_even = {"heads": policy.heads.even, "layers": policy.layers.kind == "uniform"}
    apart = [part for part, alike in is_even.items() if not alike]
    budget = "fraction or pairs of a KV head" + (f", mean over {' and '.join(apart)}" if apart else "")
    if policy.layers.kind == "global":
        budget = "fraction or pairs, over all heads and layers"
    if policy.heads.kind == "binary":
        budget = "fraction or pairs, for heads that keep all tokens"
    if policy.layers.kind == "lazy":
        budget = "fraction or pairs, for layers that keep all tokens"
    first = {"head": " (the prompt's head is kept)", 0: ""}.get(policy.sink, f" ({policy.sink} sinks)")
    return f"{windows(policy, score)}; {budget}{first}"


def described(policy: Policy) -> str:
    """The defaults of a policy in words."""
    observed = "every query observed" if policy.window == "all" else f"window {policy.window}"
    pool = (
        "no pooling" if policy.pool is None else f"{policy.pool.kind} pool {policy.pool.size}, {policy.order[0]} first"
    )
    sink = "the prompt's head" if policy.sink == "head" else policy.sink
    kept = f"sink {sink}, recent {recent_of(policy)}"
    split = ", ".join(f"{part} [{kind}](#{part}{kind})" for part, kind in kinds_of(policy).items())
    return f"{observed}, {policy.reduce} over rows, {pool}; {kept}; {split}"


def kinds_of(policy: Policy) -> dict[str, str]:
    """How a policy splits its budget."""
    return {"heads": policy.heads.kind, "layers": policy.layers.kind}


def changed_schedule(schedule: dict[str, Any]) -> str:
    """The settings of a policy's schedule other than one eviction after the prompt."""
    usual = {"evict_after": "prompt", "decode_counts": "answer"}
    changed = [f"`schedule.{key}={value}`" for key, value in schedule.items() if usual.get(key) != value]
    return f"Evicts with {', '.join(changed)}" if changed else ""


def scores() -> str:
    """A part for each score: its formula, source, settings and what it was verified against."""
    parts = []
    for name in options("score"):
        score: Score = build("score", composed("policy=plain", f"score={name}")["score"])
        formula = typeset(_paragraphs(type(score))[0])
        fields = {f"score.{key}": text for key, text in help_of(type(score)).items()}
        facts = f"Reduced over the query heads of a group by {score.group}. Reads {reads(score)}.{source(score)}"
        parts.append(_part(entry("score", name), name, [formula, facts], notes("score", name, fields)))
    return "\n\n".join(parts)


def allocations() -> str:
    """A part for each way to split a budget: its formula, source, settings and the policies that have it."""
    built = ((name, build("policy", composed(f"policy={name}")["policy"])) for name in options("policy"))
    policies_by_name: dict[str, Policy] = dict(built)
    parts = []
    for group, each in kinds(ALLOCATION).items():
        of_policies = (type(getattr(policy, group)) for policy in policies_by_name.values())
        for kind in dict.fromkeys((*each, *of_policies)):
            users = [name for name, policy in policies_by_name.items() if "budget" in policy.accepts]
            users = [name for name in users if kinds_of(policies_by_name[name])[group] == kind().kind]
            used = f"Used by {', '.join(users)}." if users else "Used by no policy's file."
            parts.append(_kind(group, kind, used))
    return "\n\n".join(parts)


def applied() -> str:
    """A part for each way to treat pairs after selection: its formula, source and settings."""
    return "\n\n".join(_kind(part, kind) for part, each in kinds().items() for kind in each)


def _kind(group: str, kind: Any, *facts: str) -> str:
    """What a kind of a part of a policy is, by its class."""
    fields = {field.name: field.default for field in dataclass_fields(kind) if field.init and field.name != "kind"}
    means = help_of(kind)
    defaults = [
        f"`policy.{group}.{key}={as_typed(value)}`" + (f" ({means[key]})" if key in means else "")
        for key, value in fields.items()
    ]
    texts = [*map(typeset, _paragraphs(kind)), *([f"Settings: {', '.join(defaults)}."] if defaults else []), *facts]
    return "\n\n".join([f"### {group}={kind().kind}", *map(_wrapped, texts)])


def _paragraphs(documented: type) -> list[str]:
    """The paragraphs of a docstring, each in one line."""
    return [" ".join(paragraph.split()) for paragraph in (documented.__doc__ or "").strip().split("\n\n")]


def typeset(text: str) -> str:
    """A formula of a docstring with sub- and superscripts and Greek letters; what stands in backticks stays."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        for pattern, sign in SIGNS.items():
            parts[place] = re.sub(pattern, sign, parts[place])
    return "`".join(parts)


def _part(method: Entry, name: str, texts: list[str], notes: list[str]) -> str:
    """One part of the page, its lines as wide as the others."""
    wrapped = [_wrapped(text) for text in (" ".join(method.says.split()), *texts)]
    note_list = ["\n".join(_wrapped(note, "  ") for note in notes)] if notes else []
    return "\n\n".join([f"### {name}", *wrapped, *note_list])


def _wrapped(text: str, indent: str = "") -> str:
    text = re.sub(r"\barXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
    text = re.sub(r"(?<![(<])https://arxiv\.org/abs/([\d.]*\d)", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)
    return "\n".join(textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def reads(score: Score) -> str:
    """What must be recorded for a score."""
    inputs = score.inputs
    words = (
        ("the observed rows", inputs.window),
        ("a repetition of the context", inputs.repeat),
        ("future queries predicted from the prompt", inputs.future_queries),
        *((f"the {name} projection of the model", True) for name in inputs.projections),
        ("the queries of the prompt and its keys before their rotation", inputs.queries),
        ("the hidden states of the prompt", inputs.hidden_states and not inputs.queries),
    )
    return ", ".join(word for word, needed in words if needed) or "nothing but the cache"


def source(score: Score) -> str:
    """Where a score is published: the addresses in its description, or else at the top of its file."""
    texts = (type(score).__doc__, getmodule(type(score)).__doc__)
    addresses = next(filter(None, (re.findall(r"https://[^\s),;]+\w", text or "") for text in texts)), [])
    return f" Published: {', '.join(dict.fromkeys(addresses))}." if addresses else ""


def refusals() -> dict[tuple[str, str], str]:
    """Why a score on a policy, as their files are, is refused; empty where it runs."""
    trees = {name: composed(f"policy={name}") for name in options("policy")}
    policies = {name: build("policy", tree["policy"]) for name, tree in trees.items()}
    scores = {name: build("score", composed("policy=plain", f"score={name}")["score"]) for name in options("score")}
    reasons = {}
    for policy, score in product(policies, scores):
        if "score" not in policies[policy].accepts:
            continue
        try:
            check_host(policies[policy], scores[score])
            if trees[policy]["schedule"]["decode_every"] is not None:
                check_steps(policies[policy], scores[score])
            reasons[policy, score] = ""
        except ValueError as error:
            reasons[policy, score] = str(error)
    return reasons


def matrix() -> str:
    """Every score on every policy: `x` runs, a letter is the reason why it does not."""
    refused = refusals()
    columns = list(dict.fromkeys(policy for policy, _ in refused))
    letters: dict[str, str] = {}
    lines = ["| score | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for score in options("score"):
        cells = []
        for policy in columns:
            text = re.sub(r"policy\.(heads|layers)=\S+ of", "heads or layers of", refused[policy, score])
            text = re.sub(rf"\b{policy}\b", "POLICY", re.sub(rf"\b{score}\b", "SCORE", text))
            cells.append(letters.setdefault(text, "abcdefghijkl"[len(letters)]) if text else "x")
        lines.append(f"| {score} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"- {letter}: {reason}" for reason, letter in letters.items())])


PARTS = {
    PAGE: {
        "fields": policy_fields,
        "policies": policies,
        "allocations": allocations,
        "scores": scores,
        "matrix": matrix,
    },
    EVIDENCE: {"defaults": defaults, "verified": verified},
    MERGING: {"kinds": applied},
}
"""What is made of each page, by its markers."""


def written(page: Path) -> str:
    """A page with every part made anew."""
    return with_parts(page.read_text("utf-8"), PARTS[page])


if __name__ == "__main__":
    for page in PARTS:
        page.write_text(written(page), "utf-8")
