"""kvpress: the pipeline's own `preprocess` on rows of simonjegou/ruler."""

import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.transcripts.stand_ins import empty
from tests.transcripts.families import FAMILIES, tokenizer
from tests.transcripts.made_up import members, ruler_rows
from tests.transcripts.transcript import Transcript, case, transcript


def transcripts(checkout: Path, root: Path) -> Iterator[tuple[str, Transcript]]:
    """Without a chat template only where the tokenizer has a first token: kvpress puts it before the text itself."""
    empty("datasets")
    sys.path.insert(0, str(checkout))
    from kvpress.pipeline import KVPressTextGenerationPipeline  # type: ignore[import-not-found]

    for member in members("ruler_published"):
        for family in FAMILIES:
            for template in ("raw", "chatml", "trimmed"):
                pipeline = KVPressTextGenerationPipeline.__new__(KVPressTextGenerationPipeline)
                pipeline.tokenizer = tokenizer(family, template)
                if template == "raw" and pipeline.tokenizer.bos_token is None:
                    continue
                for number, row in enumerate(ruler_rows(member)):
                    most = row["max_new_tokens"]
                    prepared, forward, _ = pipeline._sanitize_parameters(
                        questions=[row["question"]], answer_prefix=row["answer_prefix"], max_new_tokens=most
                    )
                    tensors = pipeline.preprocess(row["context"], **prepared)
                    context, question = tensors["context_ids"][0], tensors["questions_ids"][0][0]
                    name = case(f"ruler_published/{member}", family, template, number)
                    ids = [*context.tolist(), *question.tolist()]
                    yield name, transcript(ids, len(context), None, forward["max_new_tokens"])
