"""Sizes of files as people read them."""


def size(count: int) -> str:
    """Bytes in powers of a thousand: 114 MB, as the hub shows them."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"
