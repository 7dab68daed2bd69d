"""Texts that tell rules of splitting apart: digits, code, blanks, other scripts, and marks of chat templates."""

import random
import unicodedata

WORDS = [
    "the",
    "of",
    "You",
    "it's",
    "we'll",
    "I'D",
    "They'Re",
    "CAN'T",
    "naïve",
    "Straße",
    "don't",
    "o'clock",
    "re-entry",
]
NUMBERS = [
    "0",
    "42",
    "2024",
    "1234567",
    "3.14159",
    "1,000,000",
    "0x1F",
    "192.168.0.1",
    "50%",
    "$19.99",
    "½",
    "Ⅷ",
    "٣٤٥",
    "①",
]
CODE = [
    "def f(x):\n    return x1 + 2\n",
    "for (int i=0;i<10;i++){a[i]+=b[i]*3;}\n",
    '{"key": [1, 22, 333], "n": null}',
    "SELECT * FROM t WHERE id=42;\n",
    "<div class='a1'>&nbsp;</div>\r\n",
    "\t\tif x_1 != y2:\n\t\t\tpass\n",
    "#include <stdio.h>\n//---- 80 ----\n",
    "$\\frac{1}{2}\\alpha^{10}$",
]
BLANKS = [
    " ",
    "  ",
    "   ",
    " " * 8,
    "\n",
    "\n\n",
    "\n\n\n",
    "\t",
    "\r\n",
    " \n",
    "\n ",
    "\u00a0",
    "\u3000",
    "\u2009",
    "\x0b",
    "\x0c",
]
SCRIPTS = [
    "Привет, мир 2024!",
    "你好，世界。",
    "こんにちは カタカナ",
    "안녕하세요 세계",
    "مرحبا بالعالم ٢٠٢٤",
    "שָׁלוֹם עולם",
    "नमस्ते दुनिया १२३",
    "สวัสดีชาวโลก",
    "Γειά σου Κόσμε",
    "ẹ̀kọ́ Việt Nam",
    "👩‍👩‍👧 🇫🇷 👍🏽",
    "e\u0301 o\u0308",
]
MARKS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_start",
    "|>",
    "<repo_name>",
    "<file_sep>",
    "<jupyter_code>",
]
SIGNS = [
    *"!?.,:;-_()[]{}'\"/\\|@#%^&*~`+=<>",
    "...",
    "--",
    "''",
    "\u2019s",
    "\u2014",
    "\u2026",
    "\u00ab",
    "\u201d",
    "\u20ac",
]


def texts(count: int, seed: int = 0) -> list[str]:
    """Different texts of 1 to 24 parts; a tenth of the parts are characters drawn from all of Unicode."""
    draw = random.Random(seed)
    kinds = [WORDS, NUMBERS, CODE, BLANKS, SCRIPTS, MARKS, SIGNS]
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        own = draw.sample(kinds, draw.randint(1, len(kinds)))
        parts = [
            _character(draw) if draw.random() < 0.1 else draw.choice(draw.choice(own)) + draw.choice(["", "", " "])
            for _ in range(draw.randint(1, 24))
        ]
        drawn["".join(parts)] = None
    return list(drawn)


def _character(draw: random.Random) -> str:
    """An assigned character, no surrogate and none for private use, half of them below U+3000."""
    while True:
        character = chr(draw.randrange(1, 0x3000 if draw.random() < 0.5 else 0x20000))
        if unicodedata.category(character) not in ("Cs", "Cn", "Co"):
            return character
