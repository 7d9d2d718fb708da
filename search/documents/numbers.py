"""Numbers as a person writes them, for lines that people read."""

from __future__ import annotations

import math
import re

DIGITS = 4  # of a number that is no whole one


def written(value: object) -> str:
    """A value in few characters: 1.9e-3 for 0.0018999999, 0.03, 19,584 for 19584.0; other values in YAML's words. Never read
    it back: digits are lost. A whole number that was given as one, such as a seed, keeps its digits."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    if value == round(value) and 1000 <= abs(value) < 1e9:
        return f"{value:,.0f}"
    if value and not 0.01 <= abs(value) < 1e5:
        digits, _, power = f"{value:.{DIGITS - 1}e}".partition("e")
        return f"{_bare(digits)}e{int(power)}"
    return f"{value:.{DIGITS}g}"


def _bare(digits: str) -> str:
    """Digits without zeros at their end."""
    return re.sub(r"\.?0+$", "", digits) if "." in digits else digits
