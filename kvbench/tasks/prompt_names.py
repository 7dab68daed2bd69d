"""The names of what a prompt of a user's own has: keys of a JSON line, or columns of a table."""

from collections.abc import Collection
from difflib import get_close_matches

from kvbench.support.errors import UserError

READ = ("context", "question", "input", "messages", "answers")
"""`input` is the question in files of LongBench."""
BESIDE = ("id", "_id", "length", "dataset", "language", "all_classes", "metadata")
"""What may stand beside them and is not read: the other columns of LongBench, and data of your own."""
INDEX = ("", "Unnamed: 0", "__index_level_0__")
"""What pandas calls the numbers of rows."""
MEANT = {"query": "question", "prompt": "context", "text": "context", "document": "context", "passage": "context"} | {
    name: "answers" for name in ("label", "labels", "target", "targets", "reference", "references", "output", "outputs")
}
"""Names that others give to the same."""


def check_names(names: Collection[str]) -> None:
    """Raise UserError for a name that is unknown, and for two names of the question."""
    if "question" in names and "input" in names:
        raise UserError("it has question and input, which both are the question: leave one of them out")
    for name in names:
        if name not in (*READ, *BESIDE, *INDEX):
            near = MEANT.get(name.lower()) or next(iter(get_close_matches(name.lower(), READ, 1)), None)
            hint = f"do you mean {near}? " if near else ""
            raise UserError(
                f"it has the unknown key {name[:80]!r}: {hint}read are {', '.join(READ)}; "
                f"what is not read is called {', '.join(BESIDE)}"
            )
