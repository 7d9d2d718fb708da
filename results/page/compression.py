"""What the page carries compressed, because it is large: its data, plotly, and its own scripts."""

from __future__ import annotations

import base64
import zlib
from functools import cache

LEVEL = 9  # of zlib, the smallest


def compressed(text: str) -> str:
    """The text as base64 of zlib, which page/assets/unpacking.js reads."""
    return base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()


def unpacked(text: str) -> str:
    """The text that `compressed` was given."""
    return zlib.decompress(base64.b64decode(text)).decode()


@cache
def plotly() -> tuple[str, str]:
    """The script of plotly, and it `compressed`, made once for all pages of a process."""
    from plotly.offline import get_plotlyjs

    text = str(get_plotlyjs())
    return text, compressed(text)
