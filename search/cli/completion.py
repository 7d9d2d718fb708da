"""Names that a shell completes: of studies, architectures, suites, and kinds of tasks, mixers, samplers.

A shell asks at every press of the key. So names are read from file names, and kinds from the text of their files: nothing
heavy is imported, and no file is executed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import resources

_KIND = re.compile(r'^    kind: Literal\["(\w+)"\] = "\1"$', re.MULTILINE)

FAMILIES = {"task": ("synth", "tasks"), "mixer": ("arch", "mixers"), "sampler": ("search", "samplers")}

ENDS = {  # of files that may stand where a name may
    "study": (".yaml", ".yml", ".json"),
    "arch": (".yaml", ".yml", ".json"),
    "records": (".sqlite", ".jsonl"),
}

Complete = Callable[[str], list[str]]


def studies(incomplete: str) -> list[str]:
    """Studies that come with recallmap, and files."""
    return _begun(incomplete, [*_documents("study"), *_files(incomplete, ENDS["study"])])


def archs(incomplete: str) -> list[str]:
    """Architectures of the zoo, and files."""
    return _begun(incomplete, [*_documents("arch"), *_files(incomplete, ENDS["arch"])])


def tasks(incomplete: str) -> list[str]:
    """Kinds of tasks, and files."""
    return _begun(incomplete, [*_kinds("task"), *_files(incomplete, ENDS["arch"])])


def parts(incomplete: str) -> list[str]:
    """All that `check` and `verify` take: kinds and documents of every sort, and files."""
    documents = [name for what in ("study", "arch", "suite") for name in _documents(what)]
    kinds = [name for what in FAMILIES for name in _kinds(what)]
    return _begun(incomplete, [*kinds, *documents, *_files(incomplete, (*ENDS["arch"], ".py"))])


def kinds(incomplete: str) -> list[str]:
    """Kinds of mixers, tasks and samplers."""
    return _begun(incomplete, (name for what in FAMILIES for name in _kinds(what)))


def sources(incomplete: str) -> list[str]:
    """Studies that come with recallmap, and files of studies or of records."""
    return _begun(incomplete, [*_documents("study"), *_files(incomplete, (*ENDS["study"], *ENDS["records"]))])


def engines(incomplete: str) -> list[str]:
    """Engines of `run`."""
    return _begun(incomplete, ["inline", "ray"])


def benches(incomplete: str) -> list[str]:
    """What `bench` measures: its own words, and every op."""
    folder = resources.files("recallmap.arch") / "kernels"
    ops = [one.name for one in folder.iterdir() if one.is_dir() and (one / "recurrent.py").is_file()]
    return _begun(incomplete, ["kernels", "growth", "cold", "step", "profile", "study", "tasks", *ops])


def _begun(incomplete: str, names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})


def _documents(what: str) -> Iterable[str]:
    from recallmap.search.documents import built_in

    return built_in.builtin(what)


def _kinds(what: str) -> Iterator[str]:
    package, folder = FAMILIES[what]
    for file in (resources.files(f"recallmap.{package}") / folder).iterdir():
        if file.name.endswith(".py"):
            yield from _KIND.findall(file.read_text(encoding="utf-8"))


def _files(incomplete: str, ends: tuple[str, ...]) -> Iterator[str]:
    """Files of these ends in the folder that is written so far, and folders: a shell goes on from these."""
    folder = os.path.dirname(incomplete)
    try:
        with os.scandir(folder or ".") as found:
            for one in found:
                if one.is_dir() or one.name.endswith(ends):
                    yield os.path.join(folder, one.name) + ("/" if one.is_dir() else "")
    except OSError:
        return
