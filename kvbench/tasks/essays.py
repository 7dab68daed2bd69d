"""Paul Graham's essays, the haystack of RULER and of the classic needle test: `paul_graham_essays/*.txt`.

The 49 files of https://github.com/gkamradt/LLMTest_NeedleInAHaystack, which RULER's
scripts/data/synthetic/json/download_paulgraham_essay.py joins without a separator. RULER appends 169 pages in html;
these come after the first 111,877 words, so prompts up to about 128K tokens do not reach them.
"""

from kvbench.support.errors import UserError
from kvbench.tasks.files import find, listing, remembered


def files(root: str | None) -> tuple[str, ...]:
    """Sorted names of the essays under `data.root`. Raises MissingFile if there are none."""
    return listing(root, "paul_graham_essays/*.txt")


def joined(root: str | None) -> str:
    """All essays in the order of their names, joined as they are; line ends become newlines.

    Raises MissingFile if there are none, UserError for a file that is not UTF-8.
    """
    return "".join(_text(root, name) for name in files(root))


@remembered
def _text(root: str | None, name: str) -> str:
    file = find(root, name)
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {error}") from None
