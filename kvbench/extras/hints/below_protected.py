"""A warning before a model is loaded: cells whose budget is below the tokens that their policy protects."""

from collections.abc import Iterator

from kvbench.eviction.budget import FractionBudget
from kvbench.run.plan import Plan, PrefillGroup
from kvbench.support.quantity import count_noun, shortened

LISTED = 3


def below_protected(plan: Plan) -> str | None:
    """Return the cells with rows left of which each row will fail; None if there are none.

    Raises as `kvbench.run.lengths.lengths_of`.
    """
    failing = [text for group in plan.groups if group.model.runs_here for text in _failing(group)]
    if not failing:
        return None
    return (
        f"each row of {count_noun(len(failing), 'cell')} will fail, as the budget is below the tokens that the policy "
        f"protects: {shortened(list(dict.fromkeys(failing)), LISTED)}; raise budget= or protect fewer tokens"
    )


def _failing(group: PrefillGroup) -> Iterator[str]:
    """Yield the cells of a group that fail on its longest prompt, and so on each, with what they keep of it.

    A budget in KV pairs is checked before there is a plan. Of a question that is protected one token counts.
    """
    cells = {cell.id: cell for job in group.jobs for cell in job.cells if isinstance(cell.budget, FractionBudget)}
    protecting = [cell for cell in cells.values() if cell.policy.sink or cell.policy.recent or cell.policy.window_skips]
    if not protecting:
        return
    from kvbench.run.lengths import lengths_of

    if (lengths := lengths_of(group)) is None:
        return
    for cell in protecting:
        policy = cell.policy.resolve(0, lengths.read, cell.budget, question_tokens=1)
        pairs, protected = policy.pairs(cell.budget, lengths.read), min(policy.protected, lengths.read)
        if pairs < protected:
            name = " ".join(filter(None, (cell.eviction.policy_label, cell.eviction.score_label)))
            yield f"{name} at budget={cell.budget} ({pairs} of at most {lengths.read} tokens, {protected} protected)"
