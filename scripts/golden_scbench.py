"""Golden prompts and scores of SCBench, by the official code on rows made up here: tests/golden/prompts/scbench.json.

python scripts/golden_scbench.py FOLDER      FOLDER: `scbench` of a checkout of microsoft/MInference at fb56c91

The official modules are imported as they are; only packages that they import and that compute nothing here are empty.
`evaluate.load("rouge")` is rouge_score's scorer with the options of that metric's script.
"""

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvbench.extras.scbench_official.tests.rows import MEMBERS, PREDICTIONS, rows
from scripts.transcripts.stand_ins import empty
from tests.tasks.scbench.templates import TEMPLATES, tokenizer

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "prompts" / "scbench.json"
MODES = {"none": "create_scdq_prompt", "gold": "create_multiturn_prompt", "own": "create_multiturn_prompt"}


def rouge(kind: str) -> Any:
    """`evaluate.load`."""
    from rouge_score.rouge_scorer import RougeScorer

    assert kind == "rouge"
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=False)

    def compute(predictions: list[str], references: list[str], use_aggregator: bool) -> dict[str, list[float]]:
        pairs = [scorer.score(target, answer) for target, answer in zip(references, predictions, strict=True)]
        return {name: [pair[name].fmeasure for pair in pairs] for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")}

    return types.SimpleNamespace(compute=compute)


def grammar(language: str) -> Any:
    """`tree_sitter_languages.get_language`, whose queries give pairs of a node and its name."""
    from tree_sitter import Query, QueryCursor
    from tree_sitter_language_pack import get_language

    parsed: Any = get_language(language)  # type: ignore[arg-type]

    def query(text: str) -> Any:
        def captures(root: Any) -> list[tuple[Any, str]]:
            nodes_by_name = QueryCursor(Query(parsed, text)).captures(root)
            return sorted(
                ((node, name) for name, nodes in nodes_by_name.items() for node in nodes), key=lambda x: x[0].start_byte
            )

        return types.SimpleNamespace(captures=captures)

    return types.SimpleNamespace(query=query)


def official(folder: str) -> tuple[Any, Any, Any]:
    """eval_utils, compute_scores and repo_qa_utils."""
    import tree_sitter_language_pack

    empty("tempdir", "args")
    import transformers

    if not hasattr(transformers, "SinkCache"):
        transformers.SinkCache = None  # type: ignore[attr-defined]
    sys.modules["evaluate"] = types.SimpleNamespace(load=rouge)  # type: ignore[assignment]
    languages = {"get_language": grammar, "get_parser": tree_sitter_language_pack.get_parser}
    sys.modules["tree_sitter_languages"] = types.SimpleNamespace(**languages)  # type: ignore[assignment]
    sys.path.insert(0, folder)
    import compute_scores  # type: ignore[import-not-found]
    import eval_utils  # type: ignore[import-not-found]
    import repo_qa_utils  # type: ignore[import-not-found]

    return eval_utils, compute_scores, repo_qa_utils


def prompts_of(eval_utils: Any, member: str) -> dict[str, Any]:
    """The prompts of every row by mode and template."""
    prompts: dict[str, Any] = {}
    for mode, function in MODES.items():
        for name, template in TEMPLATES.items():
            options: dict[str, Any] = {"disable_golden_context": mode == "own"} if mode != "none" else {}
            tok = tokenizer(template)
            make: Callable[..., Any] = getattr(eval_utils, function)
            prompts[f"{mode} {name}"] = [
                make(row, f"scbench_{member}", tok, template is not None, **options)["prompts"] for row in rows(member)
            ]
    return prompts


def scores_of(eval_utils: Any, compute_scores: Any, repo_qa_utils: Any, member: str) -> list[list[list[float]]]:
    """The score of every prediction, of every turn of every row."""
    needles: dict[str, list[dict[str, str]]] = {}
    for row in rows(member):
        for turn in row["multi_turns"]:
            if "name" in turn:
                needles.setdefault(row["repo"], []).append({"needle": turn["answer"], "name": turn["name"]})
    scores = []
    for row in rows(member):
        labels = eval_utils.get_ground_truth(row, f"scbench_{member}")
        for turn, label in zip(row["multi_turns"], labels, strict=True):
            task = turn.get("task", f"scbench_{member}")
            scores.append([])
            for prediction in PREDICTIONS:
                if task == "scbench_repoqa":
                    verdict, _, similarity = repo_qa_utils.needle_evaluator(
                        prediction, {"func_name": turn["name"]}, needles[row["repo"]], row["lang"], False
                    )
                    scores[-1].append(float(verdict.value == "best_match" and similarity >= 0.8))
                    continue
                task_name = compute_scores.Multiturnbench_to_Infinitebench.get(task, task)
                scores[-1].append(compute_scores.get_score_one(prediction, label, task_name, "model"))
    return scores


if __name__ == "__main__":
    modules = official(sys.argv[1])
    golden = {
        member: {"prompts": prompts_of(modules[0], member), "scores": scores_of(*modules, member)} for member in MEMBERS
    }
    GOLDEN.write_text(json.dumps(golden, ensure_ascii=False) + "\n", "utf-8")
