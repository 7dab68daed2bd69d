"""Numbers of a server outside their range are errors of the sample, by name."""

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvbench.extras.servers.client import Client
from kvbench.extras.servers.completions import Server
from kvbench.extras.servers.endpoint import Endpoint
from kvbench.extras.servers.served_model import ServedModel
from kvbench.extras.servers.tests.stub import FOLDER, TOKENIZER
from kvbench.models.prompts.prompt import Prompt
from kvbench.support.errors import UserError
from kvbench.tasks.task import Sample, TaskSettings

SAMPLE = Sample(0, "", "A few words.", "", "", (), 1)


def saying(choice: dict[str, Any], usage: object = None) -> tuple[Server, Prompt]:
    """A server that gives this answer to everything, and a prompt for it."""
    content = {"choices": [choice], "usage": usage}
    client = SimpleNamespace(post=lambda path, body: content, stream=lambda path, body: (content, None))
    endpoint = Endpoint(url="http://127.0.0.1:1/v1", model="tiny", method="full")
    model = ServedModel(path=str(FOLDER))
    prompt = Prompt(tuple(TOKENIZER(SAMPLE.context).input_ids), (), "")
    return Server(cast("Client", client), endpoint, model, TOKENIZER), prompt


def test_a_count_is_a_whole_number_of_tokens_or_missing() -> None:
    for name, count in product(("completion_tokens", "prompt_tokens"), (-1, 2**31, 1.5, True, "3", float("nan"))):
        server, prompt = saying({"text": "x"}, {name: count})
        with pytest.raises(UserError, match=rf"usage\.{name} is .*: allowed: a whole number from 0"):
            server.answer(prompt, SAMPLE, TaskSettings())
    for usage in (None, {}, {"completion_tokens": None}):
        server, prompt = saying({"text": "x"}, usage)
        assert server.answer(prompt, SAMPLE, TaskSettings())[1].tokens is None


def test_a_log_probability_is_finite_and_at_most_0() -> None:
    _, prompt = saying({})
    server, _ = saying({"logprobs": {"token_logprobs": [None, *[-1.0] * (prompt.tokens - 1)]}})
    assert server.nll(prompt) == [1.0] * (prompt.tokens - 1)
    for value in (0.5, float("nan"), float("-inf"), True, "-1", None):
        server, _ = saying({"logprobs": {"token_logprobs": [None, *[value] * prompt.tokens]}})
        with pytest.raises(UserError, match=r"log-probability of the prompt is .*: allowed: finite numbers, at most 0"):
            server.nll(prompt)
