"""Whatever a file says, it is right or is refused with a place: mutants of every document that comes with the package.

`python tests/search/documents/test_fuzz.py COUNT [SEED]` tries many more than the suite does, each in its own time and memory.
"""

from __future__ import annotations

import random
import re
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
import yaml

from recallmap.search import codec
from recallmap.search.cli.file_summary import check
from recallmap.search.documents import yaml_text
from recallmap.search.documents.nodes import SpecError

SECONDS = 2.0  # of the processor, beyond what the document takes that is mutated
MEMORY = 270 * 2**20  # bytes, beyond what is held before: torch alone is half of the 500 MB that reading may take
LONGEST = 2000  # characters of a message

NUMBERS = [
    *(
        "0",
        "-1",
        "-0",
        "1",
        "2",
        "3",
        "7",
        "1.5",
        "-2.5",
        "1e-9",
        "1e3",
        "1e9",
        "1e300",
        "-1e300",
        "1e400",
        ".nan",
        "-.inf",
    ),
    *("10", "100", "1000", "100000", "1000000", "1000000000", "1000000000000", "-1000000000000", "9223372036854775807"),
    *("9223372036854775808", "9" * 38, "9" * 50, "012", "0x10", "1_000", "1:30"),
]
WORDS = [
    *(
        "true",
        "false",
        "null",
        "~",
        "''",
        "' '",
        "text",
        "mesa",
        "attention",
        "mqar",
        "every",
        "2024-01-01",
        "yes",
        "<<",
        "*",
    ),
    *(
        "[]",
        "[1]",
        "[1, 2, 3]",
        "[null]",
        "[[1]]",
        "[a, b]",
        "{}",
        "{a: 1}",
        "{kind: mesa}",
        "{kind: 3}",
        "{1: 2}",
        "[",
        "}",
    ),
    *(
        "&a 1",
        "*a",
        "!!python/object:os.system x",
        "!x 1",
        "%",
        "@x",
        "`x",
        "\t",
        "- 1",
        "? a",
        "a: b: c",
        "|",
        ">",
        "#",
    ),
    *(
        "{every: mixer}",
        "{suite: mad, tier: smoke}",
        "{choice: [1, 2]}",
        "{int: [1, 1000000000]}",
        "{float: [0, 1e300]}",
    ),
    *(
        "{choice: []}",
        "{int: [3, 1]}",
        "{sequence: {a: 1}, length: 1000000000}",
        "{sequence: {a: 1, b: 2}, length: [1, 900]}",
    ),
    *(
        '"\\ud800"',
        '"\\UFFFFFFFF"',
        '"\\x00"',
        "\x00",
        "\ud83d".encode("utf-8", "replace").decode(),
        "é" * 50,
        "x" * 3000,
    ),
    *(
        "[" * 40 + "]" * 40,
        "{a: " * 40 + "}" * 40,
        "[" * 5000,
        "S" * 500,
        "(a+)+",
        "[^a]*",
        "../../x.yaml",
        "/dev/null",
        ".",
    ),
]
WHOLE = [
    "",
    "\n",
    "# nothing\n",
    "[]\n",
    "3\n",
    "---\n---\n",
    "a: 1\n---\nb: 2\n",
    "%YAML 9.9\n---\na: 1\n",
    "\ufeff",
    "\t\n",
]


def documents() -> list[tuple[str, str, str]]:
    """(sort, name, text) of every document that may be checked."""
    return [
        (what, name, place.read_text(encoding="utf-8"))
        for what in ("study", "arch", "suite")
        for name, place in codec.builtin(what).items()
    ]


def mutant(text: str, rng: random.Random) -> str:
    """The text with one to three things wrong, or merely other."""
    if rng.random() < 0.02:
        return rng.choice([*WHOLE, text * (1 + 300_000 // len(text))])
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        text = rng.choice([_scalar, _scalar, _scalar, _scalar, _factor, _factor, _line, _letters])(text, rng)
    return text


def _spans(text: str) -> list[tuple[int, int]]:
    """Where the scalars of a document stand."""
    try:
        return [
            (token.start_mark.index, token.end_mark.index)
            for token in yaml.scan(text, Loader=yaml.SafeLoader)
            if isinstance(token, yaml.ScalarToken)
        ]
    except (yaml.YAMLError, ValueError, OverflowError):
        return []


def _scalar(text: str, rng: random.Random) -> str:
    """A scalar is replaced by something else, at times by one from another place."""
    spans = _spans(text)
    if not spans:
        return text
    start, end = rng.choice(spans)
    other = rng.choice(spans)
    return text[:start] + rng.choice([*NUMBERS, *WORDS, *[text[other[0] : other[1]]] * 12]) + text[end:]


def _factor(text: str, rng: random.Random) -> str:
    """A number is made larger or smaller."""
    numbers = list(re.finditer(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", text))
    if not numbers:
        return text
    found = rng.choice(numbers)
    sign = "-" if rng.random() < 0.1 else ""
    return (
        text[: found.start()]
        + sign
        + found[0]
        + rng.choice(["0" * rng.randint(1, 15), ".5", "e6", ""])
        + text[found.end() :]
    )


def _line(text: str, rng: random.Random) -> str:
    """Lines go, come twice, come in another order, or are indented otherwise."""
    lines = text.split("\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.randrange(5)
    if how == 0:
        del lines[one]
    elif how == 1:
        lines.insert(other, lines[one])
    elif how == 2:
        lines[one], lines[other] = lines[other], lines[one]
    elif how == 3:
        lines[one] = rng.choice([" ", "  ", "\t"]) + lines[one]
    else:
        lines = lines[:one]
    return "\n".join(lines)


def _letters(text: str, rng: random.Random) -> str:
    """A few letters go or come."""
    at = rng.randrange(len(text) + 1)
    return (
        text[:at] + rng.choice(["", *":,[]{}-#&*!|>%@`'\"\t\n \\", "\x07", "\u2028"]) + text[at + rng.randint(0, 3) :]
    )


# The promise. ---------------------------------------------------------------------------------------


class TooLong(BaseException):
    """No error that anybody catches."""


@contextmanager
def guard(seconds: float) -> Iterator[None]:
    """Raises TooLong after so many seconds of the processor."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def held() -> int:
    """The most bytes that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def broken(path: Path, seconds: float) -> str:
    """How the promise is broken on a file; "" where it is kept."""
    before = held()
    said = ""
    try:
        with guard(seconds):
            check(str(path))
    except SpecError as error:
        said = _faulty(error, path)
    except TooLong:
        said = f"took more than {seconds:.1f} seconds"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}"
    if not said and held() - before > MEMORY:
        said = f"took {(held() - before) / 2**20:,.0f} MB"
    return said


def _faulty(error: SpecError, path: Path) -> str:
    if len(str(error)) > LONGEST:
        return f"a message of {len(str(error)):,} characters"
    astray = [f for f in error.faults if not f.place.line]
    return f"a fault without a place: {str(astray[0])[:200]}" if astray else ""


def allowed(seconds: float) -> float:
    return SECONDS + 2 * seconds


LONG = (  # that take their time to be checked: the longer run above has them too
    *("mad", "mqar_capacity", "mqar_zoology", "regbench", "hybrid_search", "statex", "cg_steps_at_test"),
    *("learnability", "memories", "memory_skip", "omega_window"),
)
FAST = [d for d in documents() if d[0] != "study" or d[1] not in LONG]


@pytest.mark.parametrize("seed", range(6))
def test_a_mutant_is_right_or_refused_with_a_place(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    found = {}
    for number in range(50):
        _, name, text = rng.choice(FAST)
        path = tmp_path / f"{name}_{number}.yaml"
        path.write_bytes(mutant(text, rng).encode("utf-8", "surrogatepass"))
        if said := broken(path, allowed(0.5)):
            found[str(path)] = said
    assert not found


def read_twice(text: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a document says with all places, or what it is refused for: by libyaml, and by the parser in Python."""
    said = []
    for loader in (yaml.CSafeLoader, yaml.SafeLoader):
        monkeypatch.setattr("recallmap.search.documents.yaml_text._QUICK", loader)
        try:
            said.append(repr(yaml_text.parse(text.encode("utf-8", "surrogatepass"), "it")))
        except SpecError as error:
            said.append(str(error))
    return said


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml")
@pytest.mark.parametrize("seed", range(2))
def test_libyaml_reads_what_the_parser_in_python_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        quickly, slowly = read_twice(mutant(rng.choice(FAST)[2], rng), monkeypatch)
        assert quickly == slowly


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml")
@pytest.mark.parametrize(
    "text", ["a:\nb: 1\n", "a: 1\t\nb: 2\n", "a:\t1\n", "- \n- x\n", "a: {b: , c: 1}\n", "a: ''\nb: x\n"]
)
def test_libyaml_s_tabs_and_empty_values_are_read_by_the_other(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    quickly, slowly = read_twice(text, monkeypatch)
    assert quickly == slowly


def main(count: int, seed: int) -> None:
    """Try so many mutants, and keep those on which the promise is broken."""
    import tempfile
    import time

    rng = random.Random(seed)
    every = documents()
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    takes = {}
    for what, name, text in every:
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        began = time.process_time()
        check(str(path))
        takes[what, name] = time.process_time() - began
        path.unlink()
    faults: Counter[str] = Counter()
    for number in range(count):
        what, name, text = rng.choice(every)
        path = folder / f"{number}_{what}_{name}.yaml"
        path.write_bytes(mutant(text, rng).encode("utf-8", "surrogatepass"))
        if said := broken(path, allowed(takes[what, name])):
            faults[re.sub(r"\d+", "N", said)[:90]] += 1
            print(f"{path}: {said}", flush=True)
        else:
            path.unlink()
    print(f"{count} mutants of {len(every)} documents, {faults.total()} broke the promise: {dict(faults)}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
