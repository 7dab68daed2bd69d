"""InfiniteBench's rows as published: https://huggingface.co/datasets/xinrongzhang2022/InfiniteBench, a file a task.

    context    The pass key is 71432. Remember it. 71432 is the pass key. The grass is green. The sky is blue. ...
    input      What is the pass key?
    answer     ["71432"]
    options    []

`member` explains prompts, split and scorers. Rows and average tokens: passkey 590 / 122k, number_string 590 / 122k,
kv_retrieval 500 / 90k, longbook_sum_eng 103 / 172k, longbook_qa_eng 351 / 193k, longbook_choice_eng 229 / 184k,
longdialogue_qa_eng 200 / 104k, longbook_qa_chn 175 / 2069k, code_debug 394 / 115k, code_run 400 / 75k, math_calc
50 / 44k, math_find 350 / 88k.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from kvbench.tasks import jsonl
from kvbench.tasks.infinitebench.task import InfiniteBenchTask
from kvbench.tasks.sample import Tokens


@dataclass(frozen=True, kw_only=True)
class Published(InfiniteBenchTask):
    """The rows of one task. Sample i is row i; `samples` above the number of rows asks for all of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "samples", jsonl.at_most(self.root, self._file, self.samples))

    @property
    def version(self) -> str:
        """Names the protocol; bytes of rows and templates are named by `data_sha256`."""
        return f"infinitebench-88b3daa-{self.templates}.1"

    @property
    def context_length(self) -> None:
        """Rows have lengths of their own."""
        return None

    @property
    def files(self) -> tuple[str, ...]:
        """Rows and templates."""
        return self._file, self._prompts

    def rows(self, count_tokens: Tokens, indices: Collection[int]) -> Iterator[tuple[int, jsonl.Line]]:
        """Those rows of the file; nothing is counted. Raises as `jsonl.rows` does."""
        return ((line.number, line) for line in jsonl.rows(self.root, self._file, indices))

    @property
    def _file(self) -> str:
        return f"infinitebench/{self.member}.jsonl"
