"""Rows, templates and pages in the formats of LongProc, with words of our own."""

import json
from pathlib import Path
from typing import Any

FIELDS = {
    "html_to_tsv": "{html_str} of {task_topic}: {task_description}{filtering_instruction} as {tsv_header} {{yours}}",
    "path_traversal": "{city_context} from {src_city} to {dst_city}",
    "tom_tracking": "{{x: y}} {story} {question} [{story_components}]",
    "countdown": "{demonstration} Numbers: {nums} Target: {target}",
    "travel_planning": "{demonstration} {problem}",
}
TABLE = "name\tprice\tthe size\nA tall Lamp\t5.0 €\tM\nLamp\t\tS\nVase, blue\t7\tL"
ROUTE = "From Abo, take a bus to Bex.\nFrom Bex, take a ferry to Cto."
BELIEFS = """Ann's belief on the cup:
- Step 0: {Ann sees cup: False}
- Step 1: the cup is on Ann's shelf
Final Answer: shelf"""
TRIP: dict[str, Any] = {
    "num_cities": 3,
    "total_days": 9,
    "constraints": [
        {"type": "duration", "city": "Rom", "num_days": 4},
        {"type": "duration", "city": "Oslo", "num_days": 3},
        {"type": "fixed", "city": "Oslo", "start_day": 4, "end_day": 6},
        {"type": "duration", "city": "Bern", "num_days": 4},
    ],
    "connected_cities": [["Bern", "Oslo"], ["Oslo", "Rom"], ["Rom", "Bern"]],
    "ground_truth_cities": "Bern**Oslo**Rom",
    "ground_truth_durations": "4**3**4",
    "disambig_question_text": "Visit 3 European cities for 9 days. Rom 4 days, Oslo 3, Bern 4.",
    "ground_truth_plan": (
        "Here:\n\n**Day 1-4:** Arriving in Bern and visit Bern for 4 days.\n**Day 4:** Fly from Bern to Oslo.\n"
        "**Day 4-6:** Visit Oslo for 3 days.\n**Day 6:** Fly from Oslo to Rom.\n**Day 6-9:** Visit Rom for 4 days.\n\n"
    ),
}
FREE: dict[str, Any] = TRIP | {
    "constraints": [entry for entry in TRIP["constraints"] if entry["type"] == "duration"],
    "connected_cities": [["Oslo", "Bern"], ["Bern", "Rom"]],
    "ground_truth_cities": "Oslo**Bern**Rom",
    "ground_truth_durations": "3**4**4",
    "disambig_question_text": "Visit 3 European cities for 9 days without an appointment.",
    "ground_truth_plan": (
        "Here:\n\n**Day 1-3:** Arriving in Oslo and visit Oslo for 3 days.\n**Day 3:** Fly from Oslo to Bern.\n"
        "**Day 3-6:** Visit Bern for 4 days.\n**Day 6:** Fly from Bern to Rom.\n**Day 6-9:** Visit Rom for 4 days.\n\n"
    ),
}
ALL_FIXED: dict[str, Any] = TRIP | {
    "num_cities": 2,
    "total_days": 5,
    "constraints": [
        {"type": "duration", "city": "Rom", "num_days": 3},
        {"type": "fixed", "city": "Rom", "start_day": 1, "end_day": 3},
        {"type": "duration", "city": "Bern", "num_days": 3},
        {"type": "fixed", "city": "Bern", "start_day": 3, "end_day": 5},
    ],
    "ground_truth_cities": "Rom**Bern",
    "ground_truth_durations": "3**3",
    "disambig_question_text": "Visit 2 European cities for 5 days.",
    "ground_truth_plan": (
        "Here:\n\n**Day 1-3:** Arriving in Rom and visit Rom for 3 days.\n**Day 3:** Fly from Rom to Bern.\n"
        "**Day 3-5:** Visit Bern for 3 days.\n\n"
    ),
}
HTML_ROW = {
    "task_id": "W1_0.5k_1",
    "website_id": "W1",
    "html_path": "webpage/W1_0.5k_1.html",
    "task_topic": "lamps",
    "task_description": "(1) name; (2) price",
    "filtering_instruction": " Only lamps.",
    "tsv_header": "name\tprice\tthe size",
    "gt": TABLE,
}
ROWS: dict[str, list[dict[str, Any]]] = {
    "html_to_tsv": [HTML_ROW, HTML_ROW | {"filtering_instruction": "", "gt": "a\nb\n"}],
    "path_traversal": [
        {"context_nl": "Abo {is} a city.", "question_repr": ["Abo", "Cto"], "answer_nl": ROUTE},
        {"context_nl": "Bex is a city.", "question_repr": ["Bex", "Cto"], "answer_nl": ROUTE.split("\n")[1] + "\n"},
    ],
    "tom_tracking": [
        {"story_components": "Ann", "story": "Step 0: {Ann} is in.", "question": "Where?", "solution": BELIEFS}
    ]
    * 2,
    "countdown": [{"nums": [15, 3, 21, 26], "target": 24}, {"nums": [50, 49, 48, 7], "target": 8}],
    "travel_planning": [
        problem | {"id": str(number), "estimated_output_tokens": size}
        for number, (problem, size) in enumerate(((TRIP, 2047), (FREE, 4096), (ALL_FIXED, 5), (TRIP, 2048)))
    ],
}
"""Rows by kind; of travel_planning three belong to one of the lengths."""


def write(root: Path, kinds: tuple[str, ...] = tuple(ROWS), official: bool = False) -> None:
    """Files of the shortest lengths under `root`; `official`: in the folders and forms of LongProc itself."""
    for kind in kinds:
        folder = root / kind if official else root / "longproc" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prompts.yaml").write_text(json.dumps({"USER_PROMPT": f"Do {kind}: {FIELDS[kind]}!"}), "utf-8")
        files = {f"{kind}_0.5k": ROWS[kind], f"{kind}_2k": ROWS[kind], f"{kind}_8k": ROWS[kind]}
        if kind == "travel_planning":
            names = ("travel_planning_all", "travel_planning_icl_examples") if official else ("all", "examples")
            files = dict(zip(names, (ROWS[kind], ROWS[kind][:2]), strict=True))
        for name, rows in files.items():
            lines = json.dumps(rows) if official else "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.{'json' if official else 'jsonl'}").write_text(lines, "utf-8")
        if kind == "html_to_tsv":
            (folder / "webpage").mkdir(exist_ok=True)
            for length in ("0.5k", "2k", "8k"):
                (folder / "webpage" / f"W1_{length}_1.html").write_text("<p>{Lamp}</p>\n", "utf-8")
