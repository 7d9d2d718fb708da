"""Files to begin with: a mixer or a task of one's own, and a study of it, from the folder `templates`."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path

from recallmap.arch.mixers import Mixer
from recallmap.results.atomic_write import write_whole
from recallmap.search.documents import type_hints
from recallmap.search.documents.nodes import Fault, Place, SpecError
from recallmap.synth.tasks import Task

NAMES = {"mixer": "fade", "task": "echo"}  # of the kinds in the templates

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")


def write(part: str, name: str, folder: Path) -> tuple[Path, Path]:
    """Write my_NAME.py and my_NAME.yaml of a "mixer" or a "task"; returns both paths. Nothing that exists is written over.
    Raises SpecError with all faults, and OSError."""
    code, study = folder / f"my_{name}.py", folder / f"my_{name}.yaml"
    faults = []
    taken = {**type_hints.kinds_of(Mixer), **type_hints.kinds_of(Task)}
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        said = f"got {name!r}, expected small letters, digits and _, such as {NAMES[part]}"
        faults.append(Fault(Place("NAME"), "", said))
    elif name in taken:
        faults.append(
            Fault(Place("NAME"), "", f"a kind {name} ships with recallmap, expected another name, such as my_{name}")
        )
    else:
        faults = [
            Fault(Place(str(path)), "", "exists, and is not written over; choose another name, or -o FOLDER")
            for path in (code, study)
            if path.exists()
        ]
    if faults:
        raise SpecError(faults)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (code, study):
        write_whole(path, _renamed(_template(part, path.suffix), NAMES[part], name))
    return code, study


def _template(part: str, suffix: str) -> str:
    return (resources.files("recallmap.search") / "templates" / f"{part}{suffix}").read_text(encoding="utf-8")


def _renamed(text: str, old: str, new: str) -> str:
    """The template under another name: `fade` and my_fade, as FadeModule, and as a word of prose."""
    written = "".join(word.capitalize() for word in new.split("_"))
    return re.sub(rf"(?<![a-z.]){old}(?![a-z(])", new, text.replace(old.capitalize(), written))
