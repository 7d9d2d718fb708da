"""Text of others (names, settings, errors) where it is shown: no character of it acts on a terminal, a table or a spreadsheet.

A record or a file may come from anybody. Each form of output has one function here, and every verb goes through it.
"""

from __future__ import annotations

import codecs
import html as html_module
import re
import unicodedata
from typing import TypeVar

Value = TypeVar("Value")

_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # after the end of a row it would begin an option,
    "]": "{]}",
    "*": "{*}",  # and this would be a part of the end
    "±": r"$\pm$",
    "−": r"$-$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "–": "--",
    "↳": r"\quad",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}
# Markup that Markdown reads: signs, but not the _ within a name; the start of a bare link (GitHub's); the start of a line.
_MARKUP = re.compile(r"[\\|*`\[\]~$]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=\bwww)\.|^[#>+-]")
_NUMBERED = re.compile(r"^(\d+)([.)])(?=\s|$)")
_ENTITY = re.compile(r"&(?=#?\w+;)")
_MAIL = re.compile(r"(?<=\w)@(?=\w)")
_FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "＝",
    "＋",
    "－",
    "＠",
)  # a spreadsheet computes what begins so (OWASP)
_PLAINER = {
    "±": "+-",
    "−": "-",
    "–": "-",
    "—": "-",
    "…": "...",
    "·": ".",
    "×": "x",
    "↳": ">",
    "†": "!",
    "‡": "!!",
    "↑": "^",
    "↓": "v",
}


def visible(text: str) -> str:
    """Text of which every character is seen: what would act instead (terminal escapes, changes of direction, characters of
    no width, halves of surrogate pairs) is a backslash escape. Line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else _escaped(c) for c in text
    )


def one_line(text: str) -> str:
    """As `visible`, and on one line: a name cannot add a line to a table or a report."""
    return visible(text.replace("\r\n", " ").replace("\n", " ").replace("\t", " "))


def markdown(text: str) -> str:
    """One line of Markdown in which the text stands as it is, and of which nothing becomes a link or an element."""
    line = _NUMBERED.sub(r"\1\\\2", _MARKUP.sub(r"\\\g<0>", one_line(text).strip()))
    line = _ENTITY.sub("&amp;", line).replace("<", "&lt;")
    return _MAIL.sub("<!-- -->@", line)  # GitHub reads an address even where its sign is escaped


def latex(text: str) -> str:
    """One line of LaTeX in which the text stands as it is."""
    return "".join(_LATEX.get(c, c) for c in one_line(text))


def html(text: str) -> str:
    """One line of an HTML document, or a quoted attribute."""
    return html_module.escape(one_line(text))


def cell(value: Value) -> Value | str:
    """A cell of a CSV file, on one line. Text that a spreadsheet would take for a formula begins with a quote mark; numbers
    stay numbers."""
    if not isinstance(value, str):
        return value
    return f"'{one_line(value)}" if value.startswith(_FORMULA) else one_line(value)


def plainer(error: UnicodeError) -> tuple[str, int]:
    """For `codecs.register_error`: what an output cannot encode, in ASCII; signs that tables use are told by likeness."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_PLAINER.get(c, _escaped(c)) for c in text), error.end


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


PLAINER = "recallmap.plainer"  # the name under which an output stream finds it
codecs.register_error(PLAINER, plainer)
