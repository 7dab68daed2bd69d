"""Write tests/golden/kvpress: folders by the evaluate.py of kvpress, from own rows and the reference model.

python scripts/golden_kvpress.py EVALUATION OUT, with kvpress installed and EVALUATION its folder `evaluation`.
"""

import json
import sys
from pathlib import Path

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "islet", "jetty")
KINDS = {
    "vt": ("Find all variables that are assigned the value {0} in the text above.", ["ABCDE", "FGHIJ", "KLMNO"]),
    "niah_multivalue": (
        "What are all the special magic numbers for {0}?",
        ["1234567", "7654321", "1111111", "2222222"],
    ),
    "niah_multiquery": ("What are all the special magic numbers for {0} and fern?", ["1010101", "2020202"]),
    "qa_1": ("What did D'Arcy say of {0}?", ["It's late", 'It is "late"', "Anna's"]),
    "cwe": ("What are the 10 most common words in the above list?", list(WORDS)),
    "fwe": ("What are the three most frequently appeared words?", ["oakleaf", "pebble", "quartz"]),
}
"""Question and right answers by task. The two prompts of cwe and fwe have equal ones."""
RUNS = (
    {"press_name": "knorm", "compression_ratio": 0.5},
    {"press_name": "think", "key_channel_compression_ratio": 0.5},
    {"press_name": "decoding_knorm"},
    {"press_name": "knorm", "compression_ratio": 0.5, "query_aware": True},
)


def rows() -> list[dict[str, object]]:
    """Two prompts of each task."""
    return [
        {
            "context": f"Text {number} of {task}: {', '.join(answers)}.",
            "question": f"\n{question.format(WORDS[number])}",
            "answer_prefix": " Answer:",
            "answer": answers,
            "task": task,
            "max_new_tokens": 4,
        }
        for task, (question, answers) in KINDS.items()
        for number in range(2)
    ]


def main(evaluation: str, out: str) -> None:
    """Evaluate every run; `rows.jsonl` has what was asked."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sys.path.insert(0, evaluation)
    import evaluate  # type: ignore[import-not-found]
    import evaluate_registry  # type: ignore[import-not-found]

    data = Path(out) / "data" / "4096"
    data.mkdir(parents=True)
    (Path(out) / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows()))
    pq.write_table(pa.Table.from_pylist(rows()), data / "test-00000-of-00001.parquet")
    evaluate_registry.DATASET_REGISTRY["ruler"] = str(data.parent)
    for run in RUNS:
        config = evaluate.EvaluationConfig(
            dataset="ruler", data_dir="4096", model="reference", device="cpu", output_dir=out, **run
        )
        evaluate.EvaluationRunner(config).run_evaluation()


if __name__ == "__main__":
    main(*sys.argv[1:])
