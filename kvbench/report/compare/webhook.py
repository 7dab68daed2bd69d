"""The alert of a gate that did not accept a run: one JSON message, posted to an address of a chat or a program.

The message is what incoming webhooks of Slack and Mattermost take, ``{"text": ...}``, with the verdict as plain values
beside it: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks,
https://developers.mattermost.com/integrate/webhooks/incoming. Addresses of webhooks are secrets: no message of kvbench
holds more of one than its host.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from kvbench.report.compare.gate import Finding, Gate
from kvbench.report.compare.gate_formats import folded, headline
from kvbench.support.deadline import within
from kvbench.support.errors import UserError
from kvbench.support.text import printable

LISTED = 10
"""Findings that the text names; the values beside it hold up to ten times as many."""
SECONDS = 10.0
"""How long a post may take, with its whole answer."""
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "'"})
"""What would start a link or a mention in a chat, or end the block of code in which names of cells stand."""


def host_of(url: str) -> str:
    """The host of an address that can be posted to, which is all that may be shown of it.

    Raises UserError, which does not repeat the address, for one that is not http or https or has no host.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.scheme in ("https", "http") and parts.port != 0 and not parts.username else None
    except ValueError:
        host = None
    if not host or not url.isascii() or not url.isprintable() or " " in url:
        allowed = "an address as a chat gives it, https://HOST/PATH (or http://), without a user or blanks"
        raise UserError(
            f"--webhook: this is no address to post to, and not shown as it may be secret; allowed: {allowed}"
        )
    return host


def message_of(gate: Gate) -> dict[str, Any]:
    """The alert of a gate: its text, and the verdict with its first findings as plain values."""
    findings = [("", finding) for finding in folded(gate.findings)]
    findings += [("cannot tell: ", finding) for finding in folded(gate.undecided)]
    lines = [f"{finding.check}: {prefix}{finding}" for prefix, finding in findings[:LISTED]]
    lines += [f"and {len(findings) - LISTED} more"] if len(findings) > LISTED else []
    texts = [printable(text).translate(_SLACK) for text in (headline(gate), *lines)]
    return {
        "text": "\n".join([f"kvbench: {texts[0]}", "```", *texts[1:], "```"]),
        "gate": {
            "verdict": gate.verdict,
            "accepted": gate.is_accepted,
            "baseline": gate.baseline,
            "current": gate.current,
            "cells": len(gate.cells),
            "findings": _values(gate.findings),
            "undecided": _values(gate.undecided),
        },
    }


def post(url: str, message: dict[str, Any], warn: Callable[[str], None]) -> None:
    """Post a message; whatever goes wrong is one warning.

    Redirects are not followed, so that the message reaches only the host that was named. Raises UserError as `host_of`.
    """
    host = host_of(url)
    body = json.dumps(message, allow_nan=False).encode()
    request = Request(url, body, {"Content-Type": "application/json", "User-Agent": "kvbench"}, method="POST")
    try:
        within(SECONDS, lambda: build_opener(_NoRedirect).open(request, timeout=SECONDS).close())
        return
    except HTTPError as error:
        error.close()
        reason = f"it answered {error.code}"
    except (OSError, ValueError) as error:  # texts of other errors may hold the address
        cause = error.reason if isinstance(error, URLError) else error
        reason = (cause.strerror if isinstance(cause, OSError) else None) or type(cause).__name__
    except Exception as error:  # an answer that is no HTTP
        reason = type(error).__name__
    warn(f"the alert was not delivered to {host}: {reason}")


def _values(findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in folded(findings)[: 10 * LISTED]]


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Nowhere: an answer with a redirect becomes an error."""
