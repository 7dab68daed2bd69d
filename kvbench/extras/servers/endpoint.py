"""Settings of an OpenAI-compatible server, and the cell that it answers: what it keeps is known by its labels only.

model=endpoint model.path=Qwen/Qwen3-0.6B          the tokenizer and chat template, read here
endpoint.url=http://127.0.0.1:8000/v1              where the server answers
endpoint.method=snapkv endpoint.budget=1024        how it was started: the columns `policy` and `budget`
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from kvbench.eviction.schedule import Schedule
from kvbench.extras.servers.asked_code import asked_code
from kvbench.extras.servers.served_model import ServedModel
from kvbench.models.loading.spec import has_chat_template
from kvbench.run.cell import Cell, Description, canonical, describe_task
from kvbench.run.code import Code
from kvbench.support.annotations import Help, Range, check_ranges
from kvbench.support.errors import UserError
from kvbench.support.facts import ASKED, Claim, check

Api = Literal["auto", "ids", "text", "chat"]
"""What is sent: token ids or a text to `/completions`, or turns to `/chat/completions`; auto: the first that works."""
FULL = "full"
"""The method of a server that evicts nothing."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Endpoint:
    """How a server is asked, and the labels of its rows.

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

    def cell(self, model: ServedModel, task: Any, seed: int) -> "ServedCell":
        """Return the cell of a task, by its labels."""
        return ServedCell(
            model=model,
            task=task,
            policy=ServedMethod(self.method),
            score=None,
            budget="1.0" if self.budget is None else self.budget,
            schedule=Schedule(),
            seed=seed,
            policy_label=self.method,
            protocol=None,
            score_label=None,
            endpoint=self,
        )

    @property
    def identity(self) -> Description:
        """Settings that answers depend on: not where the server is if it has a name, nor how often it is asked."""
        description = {"server": self.server or self.url.rstrip("/"), "model": self.model, "api": self.api}
        return description | {"flags": self.flags, "body": dict(self.body)}


def _written(budget: str | None) -> str:
    return "null" if budget is None else budget


@dataclass(frozen=True)
class ServedMethod:
    """Stand-in for a policy: the name of a method whose settings the server alone knows."""

    name: str
    variant: None = None
    layout: None = None
    accepts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedCell(Cell):
    """One task answered by one server as it was started."""

    model: ServedModel
    policy: ServedMethod  # pyright: ignore[reportIncompatibleVariableOverride]
    score: None  # pyright: ignore[reportIncompatibleVariableOverride]
    budget: str  # pyright: ignore[reportIncompatibleVariableOverride]
    endpoint: Endpoint = field(kw_only=True)

    @cached_property
    def description(self) -> Description:
        """Everything that the cell's numbers depend on, as far as it is known, as JSON."""
        spec = self.model
        template = {"chat": spec.chat, "system": spec.system, "chat_template": has_chat_template(spec.folder())}
        return {
            "model": {"tokenizer_sha256": spec.sha256(), "max_length": spec.max_length, **template},
            "endpoint": self.endpoint.identity,
            "task": describe_task(self.task),
            "policy": {"name": self.policy.name},
            "budget": self.budget,
            "seed": self.seed,
        }

    @cached_property
    def code(self) -> Code:
        return asked_code(self.task)

    @cached_property
    def prefill_key(self) -> str:
        """Return a key of its own: no two cells share a prompt, because their servers or requests differ."""
        return canonical(self.description | {"endpoint": {**asdict(self.endpoint), "key": None}})

    @property
    def has_full_cache(self) -> bool:
        return False

    @property
    def store(self) -> str:
        return "flat"

    def job_number(self, sample: int) -> int:
        """Return the number of the job of a sample. The samples that are asked at a time make one job."""
        return sample // self.endpoint.concurrency

    def check(self) -> None:
        """Raise UserError for tasks and settings that cannot be asked of a server."""
        check(self.claims())
        least = self.task.min_new_tokens
        if least and self.endpoint.body.get("min_tokens") != least:
            raise UserError(
                f"model=endpoint: task {self.task.name} needs answers of {least} tokens or more, which is not part of "
                f"the API: use task.min_new_tokens=0, or endpoint.body={{min_tokens:{least}}} for a server that has "
                "this field"
            )

    def claims(self) -> Iterator[Claim]:
        yield Claim("model=endpoint", "a model that runs here", {ASKED: "asks a server"})
        yield from self.task.claims()
