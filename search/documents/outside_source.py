"""Sources of code from outside: a Python file with the files beside it that it imports, or an importable module."""

from __future__ import annotations

import ast
import atexit
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType

from recallmap.search.documents.type_hints import guess

MOST_FRAMES = 3  # of a user's traceback that a message tells

HASH = 12  # letters of the sha256 that `code` has

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Unusable(Exception):
    """Code that cannot be used; a line for each reason."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))


@dataclass(frozen=True)
class Source:
    """Code that may be executed.

    name   what `of: NAME:Class` calls it: a file's name without ending, or a module's
    code   the file with the beginning of its hash, or a package with its version
    path   of the file; None for a module
    files  bytes by path from the file's folder: the file and those beside it that it imports
    """

    name: str
    code: str
    path: Path | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.code

    @property
    def said(self) -> str:
        """How the command line names it, seen from the working folder."""
        return self.said_from(Path())

    def said_from(self, folder: Path) -> str:
        """How a document in a folder names it."""
        return self.name if self.path is None else os.path.relpath(self.path, folder)

    @property
    def module(self) -> str:
        """Its name among imported modules. A file has one of its own, so that it stands in nobody's way."""
        return self.name if self.path is None else re.sub(r"\W", "_", f"uses_{self.code}")


def found(said: str, here: Path) -> Source:
    """The source that a user names: a path from the folder `here`, or a module. Nothing is executed. Raises Unusable."""
    if is_path(said):
        return _file(here / said)
    if not _DOTTED.fullmatch(said):
        raise Unusable(["expected a Python file such as my_mixers.py, or a module such as some_package.mixers"])
    return _module(said, here)


def is_path(said: str) -> bool:
    """True where a name means a file, whether it exists or not."""
    return said.endswith(".py") or "/" in said or os.sep in said


def executed(source: Source) -> ModuleType:
    """The module, executed unless it was. Raises Unusable with the lines of the user's own code that lead to the fault."""
    if source.module in sys.modules:
        return sys.modules[source.module]
    try:
        return importlib.import_module(source.module) if source.path is None else _run(source, source.path)
    except (Exception, SystemExit) as error:
        raise Unusable([_story(error, source)]) from error


def remove(source: Source) -> None:
    """Forget the modules of a file, so that it can be executed again. Installed modules stay imported."""
    if source.path is None:
        return
    sys.modules.pop(source.module, None)
    folder = source.path.parent
    names = {os.path.basename(name) for name in source.files}  # of thousands of modules few files have such a one
    own = {os.path.realpath(folder / name) for name in source.files}
    for name, module in list(sys.modules.items()):
        file = str(getattr(module, "__file__", None) or "")
        if os.path.basename(file) in names and os.path.realpath(file) in own:
            del sys.modules[name]
    if str(folder) in sys.path:
        sys.path.remove(str(folder))


def unpacked(source: Source, folder: str | None) -> Source:
    """The same source on this machine: its files in a new folder below `folder` (None: the system's for temporary files) that
    goes with the process. Raises Unusable where a package has another version here."""
    if source.path is None:
        here = _module(source.name, Path())
        if here.code != source.code:
            raise Unusable([f"this machine has {here.code}; install the same version"])
        return here
    new = Path(tempfile.mkdtemp(prefix="recallmap-uses-", dir=folder))
    atexit.register(shutil.rmtree, new, ignore_errors=True)
    for name, data in source.files.items():
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).write_bytes(data)
    return replace(source, path=new / source.path.name)


# Files. -------------------------------------------------------------------------------------------


def _file(path: Path) -> Source:
    path = Path(os.path.abspath(path))
    if not path.is_file():
        near = sorted(file.name for file in path.parent.glob("*.py")) if path.parent.is_dir() else []
        raise Unusable([f"no such file{guess(path.name, near)}, expected a Python file, seen from {path.parent}"])
    try:
        files = _with_neighbours(path)
    except OSError as error:
        raise Unusable([f"cannot be read: {error.strerror or error}"]) from error
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return Source(name=path.stem, code=f"{path.name}+{digest.hexdigest()[:HASH]}", path=path, files=files)


def _with_neighbours(path: Path) -> dict[str, bytes]:
    """The file, and the files of its folder that it imports, directly or through them."""
    found: dict[str, bytes] = {}
    left = [path]
    while left:
        file = left.pop()
        name = file.relative_to(path.parent).as_posix()
        if name not in found:
            found[name] = file.read_bytes()
            left += [near for said in _imports(found[name]) for near in _of_folder(path.parent, said)]
    return found


def _imports(data: bytes) -> Iterator[str]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def _of_folder(folder: Path, module: str) -> Iterator[Path]:
    """The files of a folder that the import of a module executes."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:count])
        yield from (file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file())


def _run(source: Source, path: Path) -> ModuleType:
    """Execute a file as a module. Files beside it can be imported, after all that is installed."""
    spec = importlib.util.spec_from_file_location(source.module, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[source.module] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        exec(compile(source.files[path.name], str(path), "exec"), vars(module))  # the bytes that were hashed
    except BaseException:
        remove(source)
        raise
    return module


# Modules. -----------------------------------------------------------------------------------------


def _module(name: str, here: Path) -> Source:
    try:
        known = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        known = None
    except (Exception, SystemExit) as error:  # the package above it is executed
        raise Unusable([f"cannot be imported: {type(error).__name__}: {error}"]) from error
    if known is None:
        file = here.joinpath(*name.split(".")).with_suffix(".py")
        meant = f" (did you mean '{file.relative_to(here)}'?)" if file.is_file() else ""
        raise Unusable([f"no such module{meant}, expected an installed one, or a file such as my_mixers.py"])
    top = name.partition(".")[0]
    dists = importlib.metadata.packages_distributions().get(top, [])
    installed = importlib.metadata.distribution(dists[0]) if dists else None
    if installed is not None and not _is_editable(installed):
        return Source(name=name, code=f"{dists[0]}=={installed.version}")
    digest = hashlib.sha256()
    for file in _files_of(known.origin, top):
        digest.update(file.read_bytes())
    return Source(name=name, code=f"{name}+{digest.hexdigest()[:HASH]}")


def _is_editable(installed: importlib.metadata.Distribution) -> bool:
    """True for a package whose files are those of a checkout (`pip install -e`), so that its version says little."""
    told = installed.read_text("direct_url.json")
    try:
        data = json.loads(told or "{}")
    except ValueError:
        return False
    return bool(data.get("dir_info", {}).get("editable"))


def _files_of(origin: str | None, top: str) -> list[Path]:
    """The Python files of a package that is not installed, only found."""
    file = Path(origin or "")
    folder = next((parent for parent in file.parents if parent.name == top), None)
    return sorted(folder.rglob("*.py")) if folder is not None else [file] if file.is_file() else []


def _story(error: BaseException, source: Source) -> str:
    """The error, and the lines of the user's own code that led to it, the last first."""
    folder = str(source.path.parent) if source.path is not None else ""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if folder and os.path.abspath(frame.filename).startswith(folder + os.sep)]
    lines = [f"{Path(f.filename).name}:{f.lineno}: {f.line}" for f in reversed(own[-MOST_FRAMES:])]
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        said = f"{type(error).__name__}: {error.msg}"
        lines = [f"{Path(error.filename or '').name}:{error.lineno}: {(error.text or '').strip()}"]
    return f"cannot be imported: {said}{' in ' if lines else ''}{', called by '.join(lines)}"
