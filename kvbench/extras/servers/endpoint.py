"""An OpenAI-compatible server: its settings, and the method of cells that it answers, known by its labels only.

model=endpoint model.path=Qwen/Qwen3-0.6B          the tokenizer and chat template, read here
endpoint.url=http://127.0.0.1:8000/v1              where the server answers
endpoint.method=snapkv endpoint.budget=1024        how it was started: the columns `policy` and `budget`
"""

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from kvbench.eviction.schedule import Schedule
from kvbench.extras.servers.asked_code import asked_code
from kvbench.run.cell import Cell
from kvbench.run.code import Code
from kvbench.support.annotations import Help, Range, check_ranges
from kvbench.support.errors import UserError
from kvbench.support.facts import ASKED, Claim, check
from kvbench.tasks.task import Task

Api = Literal["auto", "ids", "text", "chat"]
"""What is sent: token ids or a text to `/completions`, or turns to `/chat/completions`; auto: the first that works."""
FULL = "full"
"""The method of a server that evicts nothing."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Endpoint:
    """How a server is asked, and the labels of its rows: the `kvbench.run.cell.Method` of its cells.

    Raises UserError for values outside the allowed set.
    """

    url: Annotated[
        str,
        Help(
            "of the API, such as http://127.0.0.1:8000/v1", example="http://127.0.0.1:8000/v1 (of the API of a server)"
        ),
    ]
    method: Annotated[
        str,
        Help(
            "how the server evicts, such as snapkv, or full: the column policy",
            example="full (how the server evicts, such as snapkv)",
        ),
    ]
    name: str = "endpoint"
    model: Annotated[str | None, Help("its name on the server; null: model.path")] = None
    budget: Annotated[
        str | None, Help("what the server keeps, as it was started: the column budget; null with endpoint.method=full")
    ] = None
    server: Annotated[str | None, Help("names the server in cells, so that it may move; null: its url does")] = None
    flags: Annotated[str, Help("how the server was started, in words, for the record")] = ""
    api: Annotated[Api, Help("ids or text (completions), chat (its own template); auto: the first that works")] = "auto"
    body: Annotated[
        Mapping[str, Any], Help("fields of every request that this server needs, such as {kv_budget:1024}")
    ] = field(default_factory=dict)
    key: Annotated[
        str | None, Help("the environment variable that holds the key, such as OPENAI_API_KEY; null: no key is sent")
    ] = None
    concurrency: Annotated[int, Help("requests at a time, and prompts of a job"), Range(1, 1024)] = 8
    timeout: Annotated[float, Help("seconds that a request may take"), Range(1, 86_400)] = 600
    retries: Annotated[int, Help("of a request after a fault that may pass"), Range(0, 100)] = 5
    stream: Annotated[bool, Help("answers are asked for piece by piece, which times them")] = True

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise UserError(
                "endpoint.url holds a user, a password or a query: give http://HOST:PORT/v1, and a key by the name of "
                "its environment variable, endpoint.key=NAME"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"endpoint.url={self.url}: allowed: the URL of an API, such as http://127.0.0.1:8000/v1")
        if self.key is not None and not VARIABLE.fullmatch(self.key):
            raise UserError("endpoint.key names the environment variable that holds the key, such as OPENAI_API_KEY")
        if not self.method.strip():
            raise UserError("endpoint.method is empty: name how the server evicts, such as snapkv, or full")
        if (self.method == FULL) == (self.budget is not None):
            fix = "leave the budget out" if self.method == FULL else "add the budget that the server was started with"
            raise UserError(f"endpoint.method={self.method} endpoint.budget={_written(self.budget)}: {fix}")
        check_ranges(self, "endpoint")
        if ours := {"model", "prompt", "messages", "max_tokens", "stream", "stream_options"} & set(self.body):
            raise UserError(f"endpoint.body names {', '.join(sorted(ours))}, which kvbench sends itself: leave it out")

    def secret(self) -> str | None:
        """Return the key. Raises UserError if its variable is not set."""
        if self.key is None:
            return None
        value = os.environ.get(self.key, "").strip()
        if not value:
            raise UserError(f"endpoint.key={self.key}: the environment has no such variable: export it, then run again")
        return value

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that answers depend on: not where the server is if it has a name, nor how often it is asked."""
        description = {"server": self.server or self.url.rstrip("/"), "model": self.model, "api": self.api}
        return description | {"flags": self.flags, "body": dict(self.body)}

    @property
    def columns(self) -> dict[str, Any]:
        unknown = dict.fromkeys(("score", "variant", "protocol", "layout"))
        return {"policy": self.method, "budget": "1.0" if self.budget is None else self.budget, **unknown}

    def described(self, task: Task, schedule: Schedule) -> dict[str, Any]:
        return {"endpoint": self.identity, "policy": {"name": self.method}, "budget": self.columns["budget"]}

    def prefill_part(self, task: Task, schedule: Schedule, seed: int) -> dict[str, Any]:
        """Return what no other cell has: a prompt is asked for each cell alone."""
        return {"endpoint": {**asdict(self), "key": None}, "seed": seed}

    def code(self, task: Task) -> Code:
        return asked_code(task)

    def job_number(self, task: Task, schedule: Schedule, sample: int) -> int:
        """Return the same for the samples that are asked at a time."""
        return sample // self.concurrency

    def check(self, task: Task, schedule: Schedule) -> None:
        """Raise UserError for tasks and settings that cannot be asked of a server."""
        asks = Claim("model=endpoint", "a model that runs here", {ASKED: "asks a server"})
        check((asks, *task.claims()))
        least = task.min_new_tokens
        if least and self.body.get("min_tokens") != least:
            raise UserError(
                f"model=endpoint: task {task.name} needs answers of {least} tokens or more, which is not part of "
                f"the API: use task.min_new_tokens=0, or endpoint.body={{min_tokens:{least}}} for a server that has "
                "this field"
            )


def _written(budget: str | None) -> str:
    return "null" if budget is None else budget


def endpoint_of(cell: Cell) -> Endpoint:
    """Return the server that answers a cell."""
    assert isinstance(cell.method, Endpoint), "the model of the cell is model=endpoint"
    return cell.method
