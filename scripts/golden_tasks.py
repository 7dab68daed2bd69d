"""Golden prompts and scores of tasks, by their authors' code on texts made up here: tests/golden/prompts/NAME.json.

python scripts/golden_tasks.py dfs_state_query FOLDER      a checkout of WeianMao/triattention at c3744ee
python scripts/golden_tasks.py babilong FOLDER             a checkout of booydar/babilong at 7a6efee
python scripts/golden_tasks.py oolong FOLDER               a checkout of abertsch72/oolong at adbf1cb
python scripts/golden_tasks.py ruler_v2 FOLDER             a checkout of NVIDIA-NeMo/Skills at 991a743
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.transcripts.stand_ins import empty, load
from tests.extras import babilong_rows

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
SENTENCES = (
    "The most recent location of Ada is garden.",
    "Garden",
    "garden or office",
    "office. No, garden",
    "The hallway is near the garden.",
    "<context> garden",
    "gardens\n<example>\noffice",
    "Question: office garden",
    "",
)
"""Answers to `ASKED`, of which the garden is right."""
ASKED = "What is east of the hallway?"


SUMS = (
    ("['spam']", "LABEL", ("Label: spam", "spam", "Label: **[spam]**", "Label: ham", "It is clearly labelled as spam")),
    ("[7]", "NUMERIC", ("Answer: 7", "Answer: 9", "6", "Answer: seven", "The number that we count is 8", "", "7.0")),
    ("['more common than']", "COMPARISON", ("Answer: spam is more common than ham here", "less common", "more common")),
    ("[datetime.date(2024, 5, 1)]", "DATE", ("Date: May 1, 2024", "2024-05-01", "Date: May 2, 2024", "Date: none")),
    ("['7']", "NUMERIC", ("User: 7", "Answer: 7 or so, I think it is", "Answer: -3")),
)
"""Right answers as rows hold them, their types, and answers."""

NUMBERS = (
    (["4083993832"], ("4083993832", "It is 4083993832.", "408399383", "", "4083993832 5", "4083993832\x004")),
    (["1111111111", "2222222222"], ("1111111111, 2222222222", "2222222222", "1111111111\n2222222222", "1111111112")),
    (
        ["1111111111", "2222222222", "3333333333", "4444444444"],
        ("33333333334444444444", "<3333333333>", "none of them"),
    ),
)
"""Right numbers, and answers."""


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


def babilong(folder: Path) -> dict[str, Any]:
    """Hashes of prompts with their answers, and whether each of `SENTENCES` is right."""
    import numpy as np
    import pandas
    from transformers import AutoTokenizer

    pandas.set_option("future.infer_string", False)  # its lines without an answer are None, as before pandas 3
    sys.path.insert(0, str(folder))
    utils, asked, rated = (import_module(f"babilong.{name}") for name in ("babilong_utils", "prompts", "metrics"))
    tokenizer = AutoTokenizer.from_pretrained(GOLDEN.parent / "ruler" / "tokenizer")
    content: dict[str, Any] = {"prompts": []}
    with tempfile.TemporaryDirectory() as root:
        babilong_rows.write(Path(root))
        books = [{"text": path.read_text("utf-8")} for path in sorted(Path(root, "pg19").iterdir())]
        for file, length, seed in (("qa1", 600, 42), ("qa4", 900, 42), ("qa1", 600, 7)):
            (path,) = Path(root, "babilong", "en-10k").glob(f"{file}_*")
            questions = utils.TaskDataset(path, max_n_facts=(length - 300) // 8)
            noise = utils.SentenceSampler(books, tokenizer=tokenizer, shuffle=True, random_seed=seed)
            mixed = utils.NoiseInjectionDataset(questions, noise, tokenizer, sample_size=length - 300, random_seed=seed)
            order = list(range(len(mixed)))
            np.random.seed(seed)
            np.random.shuffle(order)
            parts = asked.DEFAULT_PROMPTS[file]
            texts = []
            for sample in map(mixed.__getitem__, order):
                told = tokenizer.decode(sample["input_tokens"]).strip()
                ask = (sample["question"], parts["examples"], parts["instruction"], parts["post_prompt"])
                texts.append(asked.get_formatted_input(told, *ask) + tokenizer.decode(sample["target_tokens"]))
            content["prompts"].append([file, length, seed, len(texts), sha256(texts)])
    labels = rated.TASK_LABELS["qa1"]
    content["answers"] = [[text, rated.compare_answers("garden", text, ASKED, labels)] for text in SENTENCES]
    return content


def oolong(folder: Path) -> dict[str, Any]:
    """The score of each answer of `SUMS`; packages that the module imports and does not need for it are empty."""
    import dateutil.parser  # noqa: F401  the module imports dateutil alone

    empty("litellm", "datasets", "jsonlines", "tiktoken")
    sys.path.insert(0, str(folder / "src" / "eval"))
    process = import_module("eval_helpers").synth_process_response
    row = {"id": 0, "context_window_id": 0, "dataset": ""}
    scores = list[Any]()
    for right, kind, answers in SUMS:
        asked = row | {"answer": right, "answer_type": f"ANSWER_TYPE.{kind}"}
        scores += [
            [right, asked["answer_type"], text, float(process(asked, text, "")["score"])] for text in answers if text
        ]
    return {"scores": scores}


def ruler_v2(folder: Path) -> dict[str, Any]:
    """Hashes of prompts with their answers, and the score of each answer of `NUMBERS`."""
    content: dict[str, Any] = {"prompts": [], "scores": []}
    made = [sys.executable, "-m", "nemo_skills.dataset.ruler2.prepare_niah", "--type_haystack", "needle"]
    made += ["--tokenizer_path", str(GOLDEN.parent / "ruler" / "tokenizer"), "--num_digits_v", "10"]
    cases = ((512, 42, 20), (1500, 7, 20), (4096, 42, 5), (9000, 3, 3))
    for values, (length, seed, number) in product((1, 4), cases):
        with tempfile.TemporaryDirectory() as root:
            asked = {"max_seq_length": length, "random_seed": seed, "num_samples": number, "num_needle_v": values}
            flags = [f"--{name}={value}" for name, value in asked.items()]
            subprocess.run([*made, "--output_folder", root, *flags], cwd=folder, check=True)
            rows = [*map(json.loads, Path(root, "test.jsonl").read_text("utf-8").splitlines())]
        texts = [row["question"] + "".join(row["expected_answer"]) for row in rows]
        content["prompts"].append([values, length, seed, number, sha256(texts)])
    empty("nemo_skills", "nemo_skills.utils")
    utils: Any = sys.modules["nemo_skills.utils"]
    utils.nested_dataclass, utils.unroll_files, utils.get_logger_name = dataclass, list, str
    evaluate = load(folder / "nemo_skills" / "evaluation" / "evaluator" / "ruler.py", "ruler_v2_evaluator").eval_ruler2
    with tempfile.TemporaryDirectory() as root:
        file = Path(root, "answers.jsonl")
        rows = [{"expected_answer": right, "generation": text} for right, texts in NUMBERS for text in texts]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        evaluate(SimpleNamespace(input_files=[file], eval_config={"match_type": "all"}))
        for row in map(json.loads, file.read_text("utf-8").splitlines()):
            content["scores"].append([row["expected_answer"], row["generation"], row["is_correct"]])
    return content


OFFICIAL = {"dfs_state_query": dfs_state_query, "babilong": babilong, "oolong": oolong, "ruler_v2": ruler_v2}

if __name__ == "__main__":
    name, folder = sys.argv[1:]
    (GOLDEN / f"{name}.json").write_text(json.dumps(OFFICIAL[name](Path(folder)), indent=1) + "\n", "utf-8")
