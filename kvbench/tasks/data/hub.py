"""What the Hugging Face hub knows: addresses, credentials, its cache, and whether it may be asked at all.

Through huggingface_hub, so that HF_ENDPOINT, HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean elsewhere. The
bytes themselves are fetched by `fetch.py`: the hub's own client throws away what it has when a process dies.
"""

from pathlib import Path

from kvbench.tasks.data.lock import Download


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids connections; it is taken to mean all of them."""
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def address(download: Download) -> str:
    """The address of a file, of the hub or not."""
    if not download.repo:
        return download.url
    from huggingface_hub import hf_hub_url

    return hf_hub_url(download.repo, download.name, repo_type="dataset", revision=download.revision or "main")


def headers(download: Download) -> dict[str, str]:
    """What a request to the hub carries: who asks, and the token where there is one."""
    if not download.repo:
        return {}
    from huggingface_hub.utils import build_hf_headers

    return build_hf_headers(library_name="kvbench")


def cached(download: Download) -> Path | None:
    """The file in the cache of HF_HOME at the locked revision, where it is."""
    if not download.repo or download.revision is None:
        return None
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(
        download.repo,
        download.name,
        cache_dir=constants.HF_HUB_CACHE,
        revision=download.revision,
        repo_type="dataset",
    )
    return Path(found) if isinstance(found, str) else None
