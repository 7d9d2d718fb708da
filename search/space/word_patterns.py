"""Words of one length that match a regular expression, and how they may begin."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache

MOST_SEQUENCES = 100_000  # that a pattern is tried on
SECONDS = 10  # that all of them may take together

_MATCH = """
import json, re, sys
*words, pattern = json.load(sys.stdin)
print(*("01"[re.fullmatch(pattern, word) is not None] for word in words))
"""


def check_pattern(pattern: str) -> None:
    """Raise ValueError unless the text is a regular expression."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"pattern is no regular expression: {error}") from None


@lru_cache(maxsize=64)
def beginnings(
    alphabet: str, lengths: tuple[int, int], pattern: str, repeat: int | None
) -> Mapping[int, frozenset[str]]:
    """How words may begin, by their length from the least to the most, that match the pattern and have no letter more than
    `repeat` times in a row. Raises ValueError where there are too many words to try, or the pattern takes too long on them."""
    low, high = lengths
    if len(alphabet) ** high > MOST_SEQUENCES:
        raise ValueError(
            f"pattern would be tried on {len(alphabet)}^{high} words, expected at most {MOST_SEQUENCES:,}: shorten "
            "length, or repeat a short stack with {kind: repeat, times: n}"
        )
    words, tried = [""], []
    for length in range(1, high + 1):
        words = [word + letter for word in words for letter in alphabet if is_short_run(word + letter, repeat)]
        tried += words if length >= low else []
    found = _matching(tried, pattern)
    return {
        length: frozenset(word[:n] for word in found if len(word) == length for n in range(1, length + 1))
        for length in range(low, high + 1)
    }


def is_short_run(word: str, most: int | None) -> bool:
    """Say whether no letter stands more than `most` times in a row at the end of a word."""
    return most is None or len(word) <= most or len(set(word[-most - 1 :])) > 1


def _matching(words: list[str], pattern: str) -> list[str]:
    """In a process of its own: `(a*)*b` takes time exponential in a word's length, and a match cannot be interrupted."""
    command = [sys.executable, "-I", "-S", "-c", _MATCH]
    try:
        said = subprocess.run(
            command, input=json.dumps([*words, pattern]), capture_output=True, text=True, check=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"pattern takes more than {SECONDS} s on {len(words):,} words of at most {len(words[-1])} letters: a repeat "
            "within a repeat, such as (a*)*, takes exponential time; write it without"
        ) from None
    return [word for word, matches in zip(words, said.stdout.split(), strict=True) if matches == "1"]
