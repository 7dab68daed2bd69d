"""Chat templates of the two kinds that SCBench's prompts meet, and a tokenizer of bytes for them."""

from typing import Any

from tests.models.tokenizers import of_bytes

TURN = "<|{{ m.role }}|>{{ m.content }}</s>"
TEMPLATES = {
    "raw": None,
    "plain": "<s>{% for m in messages %}" + TURN + "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "system": "<s>{% if messages[0].role != 'system' %}<|system|></s>{% endif %}{% for m in messages %}"
    "<|{{ m.role }}|>{{ m.content | trim }}</s>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
}
"""raw: none. plain: text as it is. system: a system turn always, and text is trimmed, as in Llama 3.1."""


def tokenizer(template: str | None) -> Any:
    return of_bytes(begin=True, template=template)
