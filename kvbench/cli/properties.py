"""`kvbench conform --properties`: a score and a policy, ours or a plugin's, held to what all of them must do."""

from collections.abc import Sequence

from omegaconf import OmegaConf

from kvbench.cli.errors import Exit
from kvbench.config.compose import Tree, combinations
from kvbench.config.overrides import parse
from kvbench.config.settings import build
from kvbench.conformance.properties import PROPERTIES
from kvbench.eviction.evict import check_host
from kvbench.eviction.policy import Policy
from kvbench.eviction.scores.score import Score
from kvbench.support.errors import UserError

CHOSEN = ("policy", "score")


def hold(arguments: Sequence[str]) -> int:
    """Print a line for every policy and score that `arguments` name; exit code 5 unless all properties hold.

    Without a policy every policy that takes a score is looked at, without a score each policy's own. Raises ValueError
    for settings that are neither a policy's nor a score's.
    """
    asked = parse(arguments)
    named = {one.key for one in asked}
    for one in asked:
        if one.key.partition(".")[0] not in CHOSEN:
            raise UserError(f"{one.text}: --properties takes policy=, score= and their settings")
    if not named & set(CHOSEN):
        raise UserError("--properties needs score=NAME, policy=NAME or both (kvbench list shows them)")
    if "policy" not in named:
        asked = [*parse(["policy=*"]), *asked]
    failed, held = 0, 0
    for config in combinations(asked):
        policy, score = (build(group, _node(config, group)) for group in CHOSEN)
        if "score" not in policy.takes and "policy" not in named:
            continue
        failures = _failures(policy, score)
        held, failed = held + 1, failed + bool(failures)
        for line in failures:
            print(f"FAIL  policy={policy.name} score={score.name}: {' '.join(line.split())}", flush=True)
    print(f"{held - failed} of {held} combinations hold {len(PROPERTIES)} properties")
    return Exit.GATE if failed else Exit.OK


def _node(tree: Tree, group: str) -> dict[str, object]:
    node = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    assert isinstance(node, dict)
    return node[group]


def _failures(policy: Policy, score: Score) -> list[str]:
    """What does not hold; a combination that is refused with a reason says so, and holds."""
    try:
        check_host(policy, score)
    except ValueError as error:
        print(f"-     policy={policy.name} score={score.name}: refused: {error}", flush=True)
        return []
    found = []
    for one in PROPERTIES:
        try:
            one(policy, score)
        except AssertionError as error:
            found.append(f"{one.__name__}: {error}")
        except Exception as error:  # a score of others raises what it likes
            found.append(f"{one.__name__}: {type(error).__name__}: {error}")
    if not found:
        print(f"ok    policy={policy.name} score={score.name}", flush=True)
    return found
