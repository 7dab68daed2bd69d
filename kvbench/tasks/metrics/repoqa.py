"""RepoQA's score of a function that the answer repeats from a repository, as SCBench and KVzip use it.

From scbench/repo_qa_utils.py of https://github.com/microsoft/MInference, after https://github.com/evalplus/repoqa, and
repoqa_score in results/metric.py of KVzip. The score of an answer is 0 or 1: pass@1 at similarity 0.8, comments kept.

Differences: an answer of white space scores 0, where KVzip leaves it out of the mean; the grammars are those of
tree-sitter-language-pack, the maintained successor of tree_sitter_languages. They are used only for answers with blocks
of code.
"""

import re
from collections.abc import Sequence

from kvbench.support.errors import UserError
from kvbench.tasks.metrics.packages import FIX

FUNCTIONS = {
    "python": "(function_definition name: (_)) @found",
    "java": "(method_declaration name: (_)) @found",
    "typescript": "(function_declaration name: (_)) @found",
    "rust": "(function_item name: (_)) @found",
    "cpp": "(function_definition declarator: (function_declarator declarator: (identifier))) @found",
    "go": "(function_declaration name: (_)) @found",
}
"""The tree-sitter query that finds functions, by language."""
THRESHOLD = 0.8
BLOCKS = re.compile(r"^```(?:\w+)?\s*\n(.*?)(?=^```)```", re.DOTALL | re.MULTILINE)


def pass_at_1(prediction: str, references: Sequence[str], functions: Sequence[str], language: str) -> float:
    """1 if the function in the answer is most similar to one of `references`, and at least 0.8.

    functions: the repository's functions that the task asks for, including the references; of equally similar ones the
    first counts. The answer's function is the first one in its blocks of code, or the first block if no block has a
    function, or the whole answer if it has no block.

    Raises UserError: the language is none of RepoQA's, or nltk or the grammars are not installed.
    """
    if language not in FUNCTIONS:
        raise UserError(f"language {language!r}: allowed: {', '.join(FUNCTIONS)}")
    if not prediction.strip():
        return 0.0
    answer = function_in(prediction, language)
    similarities = [similarity(answer, function) for function in functions]
    best = max(similarities, default=0.0)
    return float(best >= THRESHOLD and functions[similarities.index(best)] in references)


def similarity(candidate: str, reference: str) -> float:
    """BLEU-4 of two functions, words between white space, smoothed by method 4 of Chen and Cherry (2014)."""
    try:
        from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    except ModuleNotFoundError:
        raise UserError(f"repoqa is scored by the BLEU of nltk, which is not installed; run: {FIX}") from None
    words = [re.split(r"\s+", text.strip()) for text in (reference, candidate)]
    return float(sentence_bleu([words[0]], words[1], smoothing_function=SmoothingFunction().method4))  # type: ignore[arg-type]


def function_in(prediction: str, language: str) -> str:
    """The part of an answer that is compared; see `pass_at_1`."""
    blocks = BLOCKS.findall(prediction.strip())
    if not blocks:
        return prediction.strip()
    try:
        from tree_sitter import Query, QueryCursor
        from tree_sitter_language_pack import get_language, get_parser
    except ModuleNotFoundError:
        raise UserError(f"repoqa needs tree-sitter-language-pack, which is not installed; run: {FIX}") from None
    functions = Query(get_language(language), FUNCTIONS[language])  # type: ignore[arg-type]
    for block in blocks:
        source = block.encode()
        tree = get_parser(language).parse(source)  # type: ignore[arg-type]
        if nodes := QueryCursor(functions).captures(tree.root_node).get("found", []):
            first = min(nodes, key=lambda node: (node.start_byte, -node.end_byte))
            return source[first.start_byte : first.end_byte].decode()
    return blocks[0]
