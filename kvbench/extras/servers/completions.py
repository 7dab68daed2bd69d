"""A prompt as a request, and its answer: by token ids, by its text, or as turns of a chat.

ids    /completions with the token ids that kvbench built: template and truncation are ours
text   /completions with a text that the tokenizer reads as exactly these ids
chat   /chat/completions with the turns: the server's template; the answer prefix ends the user's turn
"""

import hashlib
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvbench.extras.servers.answer_stream import Times
from kvbench.extras.servers.client import Client, Refused
from kvbench.extras.servers.endpoint import Endpoint
from kvbench.extras.servers.tokenizer import Tokenizer
from kvbench.models.loading.spec import ModelSpec
from kvbench.models.prompts.prompt import Prompt
from kvbench.support.errors import UserError
from kvbench.tasks.task import Ending, Sample, TaskSettings

Way = Literal["ids", "text", "chat"]
WAYS: tuple[Way, ...] = ("ids", "text", "chat")
MOST_TOKENS = 2**31 - 1
"""The most tokens that a server may have counted."""


@dataclass(frozen=True)
class Answer:
    """The text of an answer. `tokens`: that it has, and `read`: of the prompt, where the server counts them.

    kept_fraction: the share of KV pairs that answered it; None: unknown. reasoning: where the server has taken it out
    of the text, which is blank if nothing follows it. reasoning_tokens: of it, where the server counts them. is_raw:
    the text is all that the model wrote; what others pass on may be without its reasoning. times: of a streamed one.
    """

    text: str
    tokens: int | None = None
    read: int | None = None
    kept_fraction: float | None = None
    ended: Ending | None = None
    reasoning: str | None = None
    reasoning_tokens: int | None = None
    is_raw: bool = False
    times: Times | None = None


@dataclass(frozen=True)
class Server:
    """A server that is asked in one way about one model."""

    client: Client
    endpoint: Endpoint
    model: ModelSpec
    tokenizer: Tokenizer
    way: Way = "ids"

    def answer(self, prompt: Prompt, sample: Sample, task: TaskSettings, seed: int = 0) -> tuple[Prompt, Answer]:
        """Return the answer to a prompt, and the prompt as it was sent, whose hash names its text.

        Raises UserError for a prompt that cannot be sent in this way, and for a server that read another number of
        tokens; what `Client.post` raises.
        """
        body = {"max_tokens": sample.max_new_tokens, "temperature": task.temperature, **self._drawn(task, seed)}
        if task.stop:
            body["stop"] = list(task.stop)
        if self.way == "chat":
            turns = self._turns(sample)
            prompt = replace(prompt, sha256=hashlib.sha256(json.dumps(turns).encode()).hexdigest())
            content, times = self.client.stream("/chat/completions", self._named({"messages": turns, **body}))
            answer = _chat_answer(content, task.stop)
        else:
            content, times = self.client.stream("/completions", self._named({"prompt": self._sent(prompt), **body}))
            answer = _text_answer(content, task.stop)
            _check_read(answer.read, prompt.tokens, self.way)
        return prompt, replace(answer, times=times)

    def nll(self, prompt: Prompt) -> list[float]:
        """Negative log-likelihoods, in nats, of all tokens of a prompt but the first.

        Raises UserError for a server that gives none; what `Client.post` raises.
        """
        if self.way == "chat":
            raise UserError("the server gives no log-probabilities of a prompt in a chat: use endpoint.api=ids or text")
        body = {"prompt": self._sent(prompt), "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
        content = self.client.post("/completions", self._named(body))
        logprobs = _choice(content).get("logprobs")
        values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not isinstance(values, list) or len(values) < prompt.tokens:
            raise UserError("the server gives no log-probabilities of its prompt (echo=true, logprobs=1)")
        scored = values[1 : prompt.tokens]
        if wrong := [value for value in scored if not _is_logprob(value)]:
            raise UserError(
                f"a log-probability of the prompt is {str(wrong[0])[:40]}: allowed: finite numbers, at most 0"
            )
        _check_read(_count(content, "prompt_tokens"), prompt.tokens, self.way)
        return [-float(value) for value in scored]

    def choose_way(self) -> "Server":
        """Return the server in the way of `endpoint.api`, or the first of ids, text and chat that it takes.

        Raises UserError where it takes none of them, with its words about the last; what `Client.post` raises.
        """
        if self.endpoint.api != "auto":
            return replace(self, way=self.endpoint.api)
        ids, problem = tuple(self.tokenizer("A few words.").input_ids), UserError("")
        sample = Sample(0, "", "A few words.", "", "", (), 1)
        for way in WAYS:
            server = replace(self, way=way)
            try:
                server.answer(Prompt(ids, (), ""), sample, TaskSettings())
                return server
            except Refused as error:
                if error.status == 404 and "model" in str(error).lower() and way == "chat":
                    raise
                problem = error
            except _OtherCount as error:
                problem = error
        raise UserError(f"{problem}: the server takes neither /completions nor /chat/completions")

    def _named(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.endpoint.model or self.model.label, **body}

    def _sent(self, prompt: Prompt) -> list[int] | str:
        ids = list(prompt.prefill + prompt.question)
        return ids if self.way == "ids" else text_of(self.tokenizer, ids)

    def _turns(self, sample: Sample) -> list[dict[str, str]]:
        turns = [("system", self.model.system)] if self.model.system is not None else []
        words = sample.question if sample.messages else sample.context + sample.question
        turns += [*sample.messages, ("user", words + sample.answer_prefix)]
        return [{"role": role, "content": text or ""} for role, text in turns]

    def _drawn(self, task: TaskSettings, seed: int) -> dict[str, Any]:
        return {"top_p": task.top_p, "seed": seed} if task.temperature else {}


class _OtherCount(UserError):
    """A server read another number of tokens than were sent."""


def text_of(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text that a tokenizer, which may put special tokens before it, reads as these ids. Raises
    UserError.
    """
    whole = tokenizer.decode(list(ids))
    for text in (whole.removeprefix(tokenizer.bos_token or ""), whole):
        if tokenizer(text).input_ids == list(ids):
            return text
    raise UserError(
        "no text is read by the tokenizer as the tokens of this prompt: use a server that takes ids (endpoint.api=ids)"
    )


def _check_read(read: int | None, tokens: int, way: Way) -> None:
    if read is not None and read != tokens:
        reason = "it truncates prompts" if read < tokens else "it adds tokens of its own"
        other = " or has another tokenizer than model.path" if way == "text" else ""
        raise _OtherCount(f"the server read {read} tokens of a prompt of {tokens}: {reason}{other}")


def _choice(content: dict[str, Any]) -> dict[str, Any]:
    choices = content.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise Refused("the server's answer has no choices", 200)
    return choices[0]


def _text_answer(content: dict[str, Any], stop: Collection[str]) -> Answer:
    return replace(_answer(content, _choice(content).get("text"), stop), is_raw=True)


def _chat_answer(content: dict[str, Any], stop: Collection[str]) -> Answer:
    """Return an answer of a chat. A server that parses reasoning returns it in a field of its own, which has one of two
    names, or says only how long it was.
    """
    message = _choice(content).get("message")
    message = message if isinstance(message, dict) else {}
    named = [message.get(name) for name in ("reasoning_content", "reasoning")]
    reasoning = next((text for text in named if isinstance(text, str) and text), None)
    text, counted = message.get("content"), _count(content, "completion_tokens_details", "reasoning_tokens")
    if text is None and (reasoning is not None or _choice(content).get("finish_reason") == "length"):
        text = ""
    if reasoning is None and not text and counted:
        reasoning = ""
    return replace(_answer(content, text, stop), reasoning=reasoning, reasoning_tokens=counted)


def _answer(content: dict[str, Any], text: Any, stop: Collection[str]) -> Answer:
    if not isinstance(text, str):
        raise Refused("the server's answer has no text", 200)
    tokens, read = _count(content, "completion_tokens"), _count(content, "prompt_tokens")
    return Answer(text, tokens, read, ended=_ending(_choice(content), stop))


def _ending(choice: dict[str, Any], stop: Collection[str]) -> Ending | None:
    """Why an answer ended. Of an end token and a text of `stop` the API says the same, but some servers say which."""
    reason = choice.get("finish_reason")
    if reason == "length":
        return "limit"
    if reason != "stop":
        return None
    named = [choice[name] for name in ("stop_reason", "matched_stop") if name in choice]  # vLLM, SGLang
    if not stop or (named and named[0] not in stop):
        return "end"
    return "stop" if named else None


def _count(content: dict[str, Any], *names: str) -> int | None:
    """Return a number of tokens that the server counted; None where it says none. Raises Refused for another value."""
    count: Any = content.get("usage")
    for name in names:
        count = count.get(name) if isinstance(count, dict) else None
    if count is not None and (type(count) is not int or not 0 <= count <= MOST_TOKENS):
        said = f"the server's usage.{'.'.join(names)} is {str(count)[:40]}"
        raise Refused(f"{said}: allowed: a whole number from 0 to {MOST_TOKENS}, or none", 200)
    return count


def _is_logprob(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value <= 0  # type: ignore[arg-type, operator]
