"""An answer that a server sends piece by piece (server-sent events), as one answer, and when its pieces came."""

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STREAM: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields of a request for pieces, and for a count of tokens after the last one."""
PARTS = ("content", "reasoning_content", "reasoning")
"""Texts of a message in a chat."""


@dataclass(frozen=True)
class Times:
    """Seconds from a request to the first token of its answer, and from there to its end."""

    first_token: float
    decode: float

    def then(self, second: "Times") -> "Times":
        """Add a second request, whose times are all a part of decoding."""
        return Times(self.first_token, self.decode + second.first_token + second.decode)


class TornStream(ValueError):
    """A stream that ended before its answer did."""


def joined(content: bytes, arrivals: Sequence[tuple[int, float]]) -> tuple[dict[str, Any], Times | None]:
    """Return the answer as if it had come as a whole, and its times; None for an answer of several tokens in one piece.

    arrivals: for each read, the bytes that were there after it, and seconds since the request. Raises ValueError for
    events that are no JSON objects, and for a server's error; TornStream for a torn stream.
    """
    answer, choice, texts, pieces, is_done = {}, dict[str, Any](), dict[str, list[str]](), list[float](), False
    for event, end in _events(content):
        if event is None:
            is_done = True
            break
        if error := event.get("error"):
            raise ValueError(str(error.get("message") if isinstance(error, dict) else error))
        answer |= {name: part for name, part in event.items() if name != "choices" and part is not None}
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            continue
        piece, is_end = choices[0], choices[0].get("finish_reason") is not None
        delta = piece.get("delta")
        found = {name: delta.get(name) for name in PARTS} if isinstance(delta, dict) else {"text": piece.get("text")}
        for name, text in found.items():
            if isinstance(text, str):
                texts.setdefault(name, []).append(text)
        if is_end or not choice:
            choice = {name: part for name, part in piece.items() if name not in ("delta", "text")}
        is_done |= is_end
        if is_end or any(found.values()):
            pieces.append(arrivals[bisect_left(arrivals, (end, 0.0))][1])
    if not is_done:
        raise TornStream("the stream ended before the answer")
    whole = {name: "".join(parts) for name, parts in texts.items()}
    is_text = not whole or "text" in whole
    answer["choices"] = [choice | (whole if is_text else {"message": whole})]
    usage = answer.get("usage")
    is_one = isinstance(usage, dict) and usage.get("completion_tokens") in (0, 1)
    is_timed = pieces and (pieces[-1] > pieces[0] or is_one)
    return answer, Times(pieces[0], pieces[-1] - pieces[0]) if is_timed else None


def _events(content: bytes) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """Yield the objects of a stream, None for its end, each with the place of its last byte. Raises ValueError."""
    end = 0
    for line in content.splitlines(keepends=True):
        end += len(line)
        name, _, data = line.strip().partition(b":")
        if name != b"data":
            continue
        if data.strip() == b"[DONE]":
            yield None, end
            continue
        event = json.loads(data)
        if not isinstance(event, dict):
            raise ValueError("an event is no JSON object")
        yield event, end
