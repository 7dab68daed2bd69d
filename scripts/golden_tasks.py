"""Golden prompts and scores of tasks, by their authors' code on texts made up here: tests/golden/prompts/NAME.json.

python scripts/golden_tasks.py dfs_state_query FOLDER      a checkout of WeianMao/triattention at c3744ee
"""

import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "prompts"
NODE, STACK, VISITED = 1, [0, 1], [0, 1]  # of a search after one step
STATE = f'{{"current_node": {NODE}, "stack": {STACK}, "visited_nodes": {VISITED}}}'
STATES = (
    STATE,
    f"Analysis: {{0: [1]}} so.\nAnswer:\n```json\n{STATE}\n```",
    f"```\n{STATE}\n``` and no more",
    f"Answer: {STATE} done",
    f"{STATE} or {STATE.replace('[0, 1]', '[1, 0]')}",
    STATE.replace('"stack": [0, 1]', '"stack": [1, 0]'),
    STATE.replace('"visited_nodes": [0, 1]', '"visited_nodes": [1, 0, 0]'),
    STATE.replace('"current_node": 1', '"current_node": "1"'),
    STATE.replace('"current_node": 1', '"current_node": 1.0'),
    STATE.replace(', "visited_nodes": [0, 1]', ""),
    STATE.replace(', "stack": [0, 1]', ""),
    "```json\n{not json}\n``` " + STATE,
    f'{{"all": {STATE}}}',
    STATE[:-1],
    "",
    "Answer: 1",
)
"""Answers to the first query."""


def sha256(texts: list[str]) -> str:
    """The hash of texts in any order."""
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()


def dfs_state_query(folder: Path) -> dict[str, Any]:
    """Hashes of the queries of two seeds, and whether each of `STATES` is right."""
    sys.path.insert(0, str(folder / "triattention" / "benchmarks" / "dfs" / "scripts"))
    made, asked, rated = map(import_module, ("generate_dfs_state_dataset", "prompt_utils", "eval_dfs_state_query"))
    whole = import_module("eval_dfs_state_query_raw").is_fully_correct
    content: dict[str, Any] = {"queries": []}
    for seed, number, nodes, steps in ((42, 300, (10, 30), (1, 30)), (7, 50, (5, 12), (3, 20))):
        rows = json.loads(json.dumps(made.generate_dataset(number, *nodes, *steps, seed=seed)))
        digest = sha256([asked.build_prompt(row) + json.dumps(row["answer"]) for row in rows])
        content["queries"].append([seed, number, *nodes, *steps, digest])
    truth = {"current_node": NODE, "stack": STACK, "visited_nodes": VISITED}
    found = [(answer, rated.parse_json_response(answer)) for answer in STATES]
    content["answers"] = [
        [answer, isinstance(read, dict) and whole(rated.evaluate_prediction(read, truth))] for answer, read in found
    ]
    return content


OFFICIAL = {"dfs_state_query": dfs_state_query}

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    (GOLDEN / f"{name}.json").write_text(json.dumps(OFFICIAL[name](Path(folder)), indent=1) + "\n", "utf-8")
