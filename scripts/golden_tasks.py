"""Golden prompts and scores of tasks, by their authors' code on texts made up here: tests/golden/prompts/NAME.json.

python scripts/golden_tasks.py dfs_state_query FOLDER      a checkout of WeianMao/triattention at c3744ee
python scripts/golden_tasks.py babilong FOLDER COPIES      a checkout of booydar/babilong at 7a6efee;
                                                           kvbench/extras/babilong/tests/rows.py says what copies are
python scripts/golden_tasks.py oolong FOLDER               a checkout of abertsch72/oolong at adbf1cb
python scripts/golden_tasks.py ruler_v2 FOLDER COPIES      a checkout of NVIDIA-NeMo/Skills at 991a743, with inflect,
                                                           editdistance and tenacity; what copies are:
                                                           kvbench/extras/ruler_v2/tests/rows.py
"""

import hashlib
import json
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kvbench.config.entries import options
from kvbench.extras.babilong.tests import rows as babilong_rows
from kvbench.extras.ruler_v2.tests import rows as ruler_v2_rows
from scripts.transcripts.stand_ins import empty, load

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
COPIED = ["Which rope is grey? A. the old one B. the new one C. both D. none"]
COPIES = (
    COPIED[0],
    COPIED[0].upper(),
    "Question 7: " + COPIED[0] + " I hope that this helps.",
    "Which rope is grey? A. the old one B. a new one C. both",
    "Which rope is gray? The old one, the new one, both, none",
    "rope grey " * 40,
    f"Question 7: Which door is green?\n\nThe second is:\n\n{COPIED[0]}",
    f"{COPIED[0]}\n\nThe second is: Which door is green?",
    f"{COPIED[0]}\n\n",
    f"{COPIED[0]} Answer: the old one",
    f"<think>Which door?</think>Answer: {COPIED[0]}",
    "Answer: Which door? Answer: Which rope is grey?",
    "",
)
ONE_OR_OTHER = ["New York City", "New York"]
FOUND = (
    "new york",
    "It is in New Jersey",
    "New Haven City",
    "Document 5:\nYork\nNew York is here.\n\nI do not know",
    "Document 5:\nYork\nNew York is here.\nDocument 6: York\n\nNew or old York",
    "Document 5: New York is here.\n\nDocument 6:\nIt is in New York.\nAnswer: York",
    "Document five:\nNew York\n\n",
    "Answer: none. Answer: york",
    "",
)
CHOICES = (
    "B",
    "\\boxed{B}",
    "\\boxed{A}, no: \\boxed{B}",
    "\\boxed{\\text{B}}",
    "\\boxed{B. the new one}",
    "\\boxed{A or B}",
    "\\boxed{B or A}",
    "\\boxed{b}",
    "\\boxed{}",
    "\\boxed{K} Answer: B",
    "\\boxed {B}",
    "\\boxed{B",
    "\\boxed{\\frac{1}{B}} ends",
    "Answer: B",
    "**Answer**: **B**",
    "answer: b",
    "Answer: A. Answer: B2",
    "The final answer is B",
    "",
)
MATCHED: dict[str, Any] = {
    "all": (*NUMBERS, (COPIED, COPIES), ([*COPIED, "Which door is green?"], COPIES)),
    "2steps": ((COPIED, COPIES),),
    "part": (
        (ONE_OR_OTHER, FOUND),
        (["4083993", "1111111"], ("1111111", "Document 1111111", "Document 1111111:\nx\n\n")),
    ),
    "multichoice": (("B", CHOICES),),
}
"""Right answers and answers, by how they are compared."""


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


def babilong(folder: Path, copies: Path) -> dict[str, Any]:
    """Hashes of prompts with their answers, and whether each of `SENTENCES` is right."""
    import pandas

    pandas.set_option("future.infer_string", False)  # its lines without an answer are None, as before pandas 3
    sys.path.insert(0, str(folder))
    rated = import_module("babilong.metrics")
    content: dict[str, Any] = {"prompts": [], "copied": []}
    with tempfile.TemporaryDirectory() as root:
        babilong_rows.write(Path(root))
        for case in (("qa1", 600, 42), ("qa4", 900, 42), ("qa1", 600, 7)):
            texts = _babilong_prompts(Path(root), *case)
            content["prompts"].append([*case, len(texts), sha256(texts)])
    for case in (("qa1", 1000, 42), ("qa1", 4000, 7), ("qa2", 2000, 42), ("qa4", 1000, 7), ("qa5", 2000, 42)):
        texts = _babilong_prompts(copies, *case, most=15)
        content["copied"].append([*case, len(texts), sha256(texts)])
    labels = rated.TASK_LABELS["qa1"]
    content["answers"] = [[text, rated.compare_answers("garden", text, ASKED, labels)] for text in SENTENCES]
    return content


def _babilong_prompts(root: Path, file: str, length: int, seed: int, most: int | None = None) -> list[str]:
    """The official prompts with their answers, of the first `most` questions in their order."""
    import numpy as np
    from transformers import AutoTokenizer

    utils, asked = (import_module(f"babilong.{name}") for name in ("babilong_utils", "prompts"))
    tokenizer = AutoTokenizer.from_pretrained(GOLDEN.parent / "ruler" / "tokenizer")
    books = [{"text": path.read_text("utf-8")} for path in sorted((root / "pg19").iterdir())]
    (path,) = (root / "babilong" / "en-10k").glob(f"{file}_*")
    questions = utils.TaskDataset(path, max_n_facts=(length - 300) // 8)
    noise = utils.SentenceSampler(books, tokenizer=tokenizer, shuffle=True, random_seed=seed)
    mixed = utils.NoiseInjectionDataset(questions, noise, tokenizer, sample_size=length - 300, random_seed=seed)
    order = list(range(len(mixed)))
    np.random.seed(seed)
    np.random.shuffle(order)
    parts = asked.DEFAULT_PROMPTS[file]
    texts = []
    for sample in map(mixed.__getitem__, order[:most]):
        told = tokenizer.decode(sample["input_tokens"]).strip()
        ask = (sample["question"], parts["examples"], parts["instruction"], parts["post_prompt"])
        texts.append(asked.get_formatted_input(told, *ask) + tokenizer.decode(sample["target_tokens"]))
    return texts


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


def ruler_v2(folder: Path, copies: Path) -> dict[str, Any]:
    """Hashes of prompts with their answers, and the score of each answer of `MATCHED`."""
    sys.path.insert(0, str(folder))
    names = [name for name in options("task") if name.startswith("ruler_v2/")]
    generated = [name for name in names if name.endswith("niah_basic")]
    forms = product((name for name in names if name not in generated), ("base", "instruct"))
    alike = (("ruler_v2/qa_basic", "base"), ("ruler_v2/qa_easy", "base"))
    asked = [each for each in forms if each not in alike]
    content: dict[str, Any] = {"generated": [], "made_up": [], "copied": []}
    for name, case in product(generated, ((512, 42, 20), (1500, 7, 20), (4096, 42, 5), (9000, 3, 3))):
        content["generated"].append([name, *case, _digest(folder, name, "instruct", *case)])
    sources = (
        ("made_up", ruler_v2_rows.made_up(), ((1500, 42, 8), (4000, 7, 8))),
        ("copied", ruler_v2_rows.copied(copies), ((6000, 42, 8), (10000, 7, 8))),
    )
    for kind, rows, cases in sources:
        _offer(rows)
        for (name, form), case in product(asked, cases):
            content[kind].append([name, form, *case, _digest(folder, name, form, *case)])
    content["scores"] = _scores(folder / "nemo_skills" / "evaluation")
    return content


def _offer(rows: dict[str, list[dict[str, Any]]]) -> None:
    """Let the official code load these rows as data sets of the hub."""
    data = {
        "cais/mmlu": {name: rows[f"mmlu_{name}"] for name in ("test", "auxiliary_train")},
        "hotpotqa/hotpot_qa": {
            "train": rows["hotpotqa_train_0"] + rows["hotpotqa_train_1"],
            "validation": rows["hotpotqa_validation"],
        },
    }
    empty("datasets")
    sys.modules["datasets"].load_dataset = lambda name, _: data[name]  # type: ignore[attr-defined]


def _digest(folder: Path, name: str, form: str, length: int, seed: int, number: int) -> str:
    """The hash of what the official code makes with the arguments of prepare.py; a set of documents keeps its order."""
    prepare, commands = import_module("nemo_skills.dataset.ruler2.prepare"), list[str]()
    prepare.subprocess = SimpleNamespace(run=lambda command, **_: commands.append(command))  # type: ignore[attr-defined]
    tokenizer = str(GOLDEN.parent / "ruler" / "tokenizer")
    with tempfile.TemporaryDirectory() as root:
        getattr(prepare, f"prepare_{name.partition('/')[2]}")(root, "hf", tokenizer, length, number)
        (command,) = commands
        command = command.replace("--random_seed 42", f"--random_seed {seed}").replace("instruct", form)
        module, sys.argv = command.split()[2], command.split()[2:]
        program = (folder / (module.replace(".", "/") + ".py")).read_text("utf-8")
        program = program.replace("list(set(haystack))", "list(dict.fromkeys(haystack))")
        exec(program, {"__name__": "__main__", "__package__": module.rpartition(".")[0]})
        rows = [*map(json.loads, Path(root, "test.jsonl").read_text("utf-8").splitlines())]
    return sha256([row["question"] + "".join(row["expected_answer"]) for row in rows])


def _scores(folder: Path) -> list[list[Any]]:
    """The score of each answer of `MATCHED`; packages that the modules import and do not need for it are empty."""
    empty("nemo_skills", "nemo_skills.utils", "nemo_skills.evaluation", "latex2sympy2_extended", "math_verify")
    utils: Any = sys.modules["nemo_skills.utils"]
    utils.nested_dataclass, utils.unroll_files, utils.get_logger_name = dataclass, list, str
    load(folder / "math_grader.py", "nemo_skills.evaluation.math_grader")
    ruler, mcq = (load(folder / "evaluator" / f"{name}.py", f"ruler_v2_{name}") for name in ("ruler", "mcq"))
    scores = list[list[Any]]()
    for match, cases in MATCHED.items():
        evaluate, field = (
            (mcq.eval_mcq, "symbolic_correct") if match == "multichoice" else (ruler.eval_ruler2, "is_correct")
        )
        with tempfile.TemporaryDirectory() as root:
            file = Path(root, "answers.jsonl")
            rows = [{"expected_answer": right, "generation": text} for right, texts in cases for text in texts]
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
            evaluate(SimpleNamespace(input_files=[file], eval_config={"match_type": match}))
            for row in map(json.loads, file.read_text("utf-8").splitlines()):
                right = row["expected_answer"]
                right = [right] if isinstance(right, str) else right
                scores.append([match, right, row["generation"], float(row[field])])
    return scores


OFFICIAL = {"dfs_state_query": dfs_state_query, "babilong": babilong, "oolong": oolong, "ruler_v2": ruler_v2}

if __name__ == "__main__":
    name, *folders = sys.argv[1:]
    content = OFFICIAL[name](*map(Path, folders))
    (GOLDEN / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")
