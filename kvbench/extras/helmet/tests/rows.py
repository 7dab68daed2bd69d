"""Rows in the formats of HELMET, with words of our own: few questions, several rows each, as in its files."""

import json
from pathlib import Path
from typing import Any

WORDS = ("grass", "sky", "sun", "yellow", "green", "blue", "here", "back", "again", "magic", "number", "hidden", "text")
CLASSES = {"trec": 50, "banking77": 77, "clinic150": 151, "nlu": 68}


def words(start: int, count: int) -> str:
    return " ".join(WORDS[(start + place * place) % len(WORDS)] for place in range(count))


def json_kv(count: int) -> list[dict[str, Any]]:
    pairs = [(f"key-{place}-a", f"value-{place * 7}") for place in range(count)]
    body = "{" + ", ".join(f'"{key}": "{value}"' for key, value in pairs) + "}"
    context = f"JSON data:\n{body}"
    demos = [list(pair) for pair in pairs[:4]]
    return [
        {"context": context, "question": key, "answer": value, "demos": demos, "num_kvs": count}
        for key, value in pairs[:9]
    ]


def ruler(kind: str) -> list[dict[str, Any]]:
    entries = []
    for row in range(8):
        text = f"{words(row, 60)} One of the special magic {kind} for sky-{row} is: {row * 31}. {words(row, 9)}"
        fields = {"index": row, "context": text, "query": f"sky-{row}", "type_needle_v": kind}
        entries.append(fields | {"outputs": [str(row * 31), "Ab-9"]})
    return entries


def qa(count: int, rows: int, name: str | None, popular: bool = False) -> list[dict[str, Any]]:
    """Each question in two rows, with the passages in another order; name: how values of the field `id` begin."""
    entries = []
    for row in range(rows):
        number, turn = divmod(row, 2)
        passages = [{"title": f"On {words(place, 2)}", "text": words(place + number, 12)} for place in range(count)]
        entry: dict[str, Any] = {
            "question": f"what is {words(number, 3)} {number}?",
            "answers": [f"The {words(number, 2)}", "Ü x"],
        }
        entry |= {} if name is None else {"id": f"{name}{number}"}
        entry |= {"s_pop": 10 ** (number % 5)} if popular else {}
        entries.append(entry | {"ctxs": passages[turn:] + passages[:turn]})
    return entries


def msmarco(count: int, rows: int, titled: bool, first: int = 0) -> list[dict[str, Any]]:
    entries = []
    for row in range(first, first + rows):
        passages: list[dict[str, Any]] = [
            {"id": str(100 + (row + place * 7) % 97), "text": words(row + place, 10), "label": (row + place) % 4}
            for place in range(count)
        ]
        if titled:
            passages = [passage | {"title": words(int(passage["id"]), 2)} for passage in passages]
        entries.append({"qid": f"q{row // 2}", "query": f"{words(row // 2, 4)} {row // 2}?", "ctxs": passages})
    return entries


def classes(name: str, rows: int, first: int = 0) -> list[dict[str, Any]]:
    many = CLASSES[name]
    entries = []
    for row in range(first, first + rows):
        number = (row * row + row // 3) % many
        fields = {"coarse_label": number % 6, "fine_label": number} if name == "trec" else {"label": number}
        fields = {"intent": number} if name == "clinic150" else fields
        entries.append({"text": f"{words(row, 2)} {row}?"} | fields)
    return entries


def write(root: Path) -> None:
    """Files of the shortest length, and of the classes, under `root`."""
    files: dict[str, list[dict[str, Any]]] = {"helmet/json_kv/test_k105_dep6": json_kv(105)}
    for name, kind in (("multikey_2", "numbers"), ("multikey_3", "uuids"), ("multivalue", "numbers")):
        files[f"helmet/ruler/niah_{name}/validation_8192"] = ruler(kind)
    for name, depth in (("nq", 6), ("triviaqa", 6), ("hotpotqa", 3)):
        field = None if name == "nq" else f"{name}-"
        files[f"helmet/kilt/{name}-dev-multikilt_1000_k50_dep{depth}"] = qa(50, 8, field)
        files[f"helmet/kilt/{name}-train-multikilt_1000_k3_dep{depth}"] = qa(3, 12, field)
    files["helmet/kilt/popqa_test_1000_k50_dep6"] = qa(50, 14, "p", popular=True)
    files["helmet/kilt/popqa_test_1000_k3_dep6"] = qa(3, 14, "p", popular=True)
    files["helmet/msmarco/test_reranking_data_k50_dep3"] = msmarco(50, 8, titled=True)
    files["helmet/msmarco/test_reranking_data_k10_dep3"] = msmarco(10, 30, titled=True)
    for name in ("trec", "banking77", "clinic150"):
        files[f"helmet_icl/{name}_train"] = classes(name, 900)
        files[f"helmet_icl/{name}_test"] = classes(name, 30, first=1000)
    files["helmet_nlu/train"] = classes("nlu", 900)
    for path, rows in files.items():
        file = (root / path).with_suffix(".jsonl")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
