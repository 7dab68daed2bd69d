"""Identity of a server: software, version, model, and the settings that its pages show."""

from collections.abc import Mapping
from typing import Any

from kvbench.extras.servers.completions import Server
from kvbench.extras.servers.endpoint import Endpoint

PAGES = ("/version", "/info", "/get_server_info", "/props")
"""Of vLLM, TGI, SGLang and llama.cpp; each has one of them."""
SETTINGS = (
    *("version", "model_id", "model_path", "max_total_tokens", "max_total_num_tokens", "kv_cache_dtype", "dtype"),
    *("attention_backend", "disable_radix_cache", "build_info", "total_slots", "n_ctx"),
)
"""What is kept of such a page: it may also hold keys and paths."""
MODEL = ("id", "owned_by", "root", "max_model_len")


def identity(server: Server) -> dict[str, Any]:
    """Return the `device` of rows: how the server was asked, and what it says of itself."""
    endpoint, client = server.endpoint, server.client
    pages: dict[str, Any] = {}
    for page in PAGES:
        content, _ = client.get(page, at_root=True) or (None, {})
        if isinstance(content, dict):
            pages[page] = {name: content[name] for name in SETTINGS if name in content}
    content, headers = client.get("/models") or (None, {})
    return {
        "name": f"{_software(content, headers, pages)} at {endpoint.server or endpoint.url}",
        "api": server.way,
        "model": endpoint.model or server.model.label,
        "listed": _listed(content, endpoint, server.model.label),
        "flags": endpoint.flags,
        "pages": pages,
    }


def _software(content: Any, headers: Mapping[str, str], pages: Mapping[str, Mapping[str, Any]]) -> str:
    version = next((str(page["version"]) for page in pages.values() if "version" in page), "")
    owners = [str(entry.get("owned_by")) for entry in _entries(content) if entry.get("owned_by")]
    software = owners[0] if owners else headers.get("server", "a server")
    return f"{software} {version}".strip()


def _listed(content: Any, endpoint: Endpoint, label: str) -> dict[str, Any] | None:
    """Return the entry of the asked model in the server's list of models."""
    for entry in _entries(content):
        if entry.get("id") == (endpoint.model or label):
            return {name: entry[name] for name in MODEL if name in entry}
    return None


def _entries(content: Any) -> list[dict[str, Any]]:
    entries = content.get("data") if isinstance(content, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
