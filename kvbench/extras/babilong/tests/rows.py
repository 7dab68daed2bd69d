"""Stories in the form of bAbI and books, with words of our own.

A folder with copies has the form of `data.root`: `babilong/en-10k` with the training files of qa1, qa2, qa4 and qa5 of
DataModel in Zevere/NLP-Python at aa893e4, and `pg19` with the books 12204, 31974 and 37443.
"""

from pathlib import Path

FILES = (
    "qa1_single-supporting-fact",
    "qa2_two-supporting-facts",
    "qa3_three-supporting-facts",
    "qa4_two-arg-relations",
    "qa5_three-arg-relations",
)
PEOPLE, PLACES = ("Ada", "Bo", "Cy"), ("kitchen", "garden", "office", "hallway")
WORDS = ("grey", "rope", "late", "stone", "under", "harbor", "seven", "quiet", "letter", "green", "door", "again")


def story(number: int) -> str:
    """Two questions, after two and after four facts."""
    lines = list[str]()
    for step in range(2):
        for person in range(2):
            who, place = PEOPLE[(number + person) % 3], PLACES[(number + 3 * step + person) % 4]
            lines.append(f"{len(lines) + 1} {who} went to the {place}.")
        who, place = PEOPLE[number % 3], PLACES[(number + 3 * step) % 4]
        lines.append(f"{len(lines) + 1} Where is {who}? \t{place}\t{len(lines) - 1}")
    return "\n".join(lines)


def book(number: int) -> str:
    """Sentences of 3 to 20 words."""
    sentences = (
        " ".join(WORDS[(number * line + line * word * word) % len(WORDS)] for word in range(3 + (5 * line) % 18))
        for line in range(120)
    )
    return "".join(f"{sentence.capitalize()}.{chr(10) if line % 4 else ' '}" for line, sentence in enumerate(sentences))


def write(root: Path) -> None:
    """Files of five bAbI tasks, 12 stories each, and two books under `root`."""
    (root / "babilong" / "en-10k").mkdir(parents=True)
    (root / "pg19").mkdir(exist_ok=True)
    for first, file in enumerate(FILES):
        stories = "\n".join(story(number) for number in range(first, first + 12))
        (root / "babilong" / "en-10k" / f"{file}_train.txt").write_text(stories + "\n", "utf-8")
    for number in (7, 8):
        (root / "pg19" / f"{number}.txt").write_text(book(number), "utf-8")
