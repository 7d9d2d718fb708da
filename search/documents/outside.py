"""Kinds from outside: files and modules that the user names (`uses:`, `--use`), and entry points of installed packages.

Code is executed only here, and only where the user names it. Records, pages and tables are read without. A spec from outside
joins the union of its family for this process. Its plain data has one more field, `code`, which says what defined it:
`my_mixers.py+1a2b3c4d5e6f` (the beginning of a sha256 over the file and the files beside it that it imports), or
`some_package==1.2.0`. So the records of changed code have other keys, and the keys of our own kinds stay.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, make_dataclass
from importlib import import_module
from inspect import getsourcelines, isabstract
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from recallmap.search.documents import built_in, outside_source, type_hints
from recallmap.search.documents.nodes import Fault, Node, Place, SpecError
from recallmap.search.documents.outside_source import Source, Unusable

MOST_SAID = 8  # kinds and torch modules that a line names

CODE = "code"  # the field that says what defined a spec


class Family(NamedTuple):
    """What a spec from outside may be: the module and name of its base, and of the union that it joins."""

    noun: str
    group: str  # of entry points
    base: tuple[str, str]
    union: tuple[str, str]


FAMILIES = (
    Family("mixer", "recallmap.mixers", ("arch.mixers.mixer", "MixerSpec"), ("arch.mixers", "Mixer")),
    Family("mlp", "recallmap.mlps", ("arch.mlp", "MlpSpec"), ("arch.mlp", "Mlp")),
    Family("task", "recallmap.tasks", ("synth.task", "Task"), ("synth.tasks", "Task")),
    Family("sampler", "recallmap.samplers", ("search.samplers.sampler", "SamplerSpec"), ("search.samplers", "Sampler")),
)

USES = ("uses",)  # the key that any document may have besides its own, and that `ready` takes out

ABOUT_USES = "Python files, seen from this one, and modules, which are executed for the kinds that they define."

WRAPPER, WRAPPED = "arch.torch_module", "module"  # what wraps torch modules, and its kind


@dataclass(frozen=True)
class Loaded:
    """Code that was executed: its source, the specs that it defined with their families, and its torch modules by name."""

    source: Source
    specs: tuple[tuple[Family, type], ...]
    modules: tuple[str, ...]

    @property
    def summary(self) -> str:
        """`my_mixers.py+1a2b3c4d5e6f: mixer fade, torch modules MyLayer`."""
        said = [f"{family.noun} {kind}" for family, spec in self.specs for kind in kinds_said(spec)]
        said += [f"torch module {name}" for name in self.modules]
        more = f" and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
        return f"{self.source.code}: {', '.join(said[:MOST_SAID])}{more}"


_loaded: dict[tuple[str, str], Loaded] = {}  # by name and code of the source
_asked: list[str] = []  # on the command line
_installed: dict[str, str] = {}  # what is wrong with an entry point, by group and name
_looked: list[bool] = []  # not empty once the entry points are known


# Doors. -------------------------------------------------------------------------------------------


def use(names: Iterable[str]) -> None:
    """Execute files and modules that the command line names, seen from the working folder. Raises SpecError."""
    names = list(names)
    _asked.extend(names)
    _load((name, Path(), Place("--use"), "") for name in names)


def asked() -> tuple[str, ...]:
    """The names that the command line gave."""
    return tuple(_asked)


def words() -> list[str]:
    """The options that name, for another command, all code from outside that this process has executed."""
    sources = [one.source for one in _loaded.values()]
    return [word for source in sources for word in ("--use", source.said)]


def ready(node: Node) -> Node:
    """The document without `uses`, after what `uses` names, and the kinds of installed packages, have joined. Raises
    SpecError. Only for documents that the user names."""
    join_installed()
    said = node.get("uses")
    if said is None:
        _expect_modules(node)
        return node
    here = Path(said.place.source).parent if said.place.line else Path()
    if not isinstance(said.value, tuple) or not all(isinstance(part.value, str) for part in said.value):
        like = "a list of files and modules, such as [my_mixers.py, some_package.mixers]"
        raise SpecError([Fault(said.place, "uses", f"got {said.plain()!r}, expected {like}")])
    _load((part.value, here, part.place, f"uses[{number}]") for number, part in enumerate(said.value))
    _expect_modules(node)
    rest = {key: part for key, part in node.value.items() if key != "uses"}
    return Node(rest, node.place, {key: place for key, place in node.keys.items() if key != "uses"})


def _expect_modules(node: Node) -> None:
    """Raise SpecError where a document wraps a torch module and no code has one: `module` is no kind until then."""
    found = [] if _is_offering() else list(_wrapping(node))
    if found:
        how = "uses: [my_mixers.py] in the document, or --use my_mixers.py"
        raise SpecError(
            Fault(part.place, "", f"kind 'module' needs the file or module of its class: say {how}") for part in found
        )


def _wrapping(node: Node) -> Iterator[Node]:
    parts = node.value if isinstance(node.value, tuple) else node.value.values() if isinstance(node.value, dict) else ()
    kind = node.get("kind")
    if kind is not None and kind.value == WRAPPED:
        yield kind
    for part in parts:
        yield from _wrapping(part)


def would_execute(node: Node, seen: frozenset[str] = frozenset()) -> list[str]:
    """What `uses` names in a document, and in the files of architectures that it names (but for those in `seen`), without
    executing any of it: a file with the beginning of its hash, or a module. Raises SpecError where a file is not there."""
    said = node.get("uses")
    names: list[str] = []
    for part in said.value if said is not None and isinstance(said.value, tuple) else ():
        here = Path(part.place.source).parent if part.place.line else Path()
        try:
            is_file = outside_source.is_path(str(part.value))
            names.append(outside_source.found(part.value, here).code if is_file else str(part.value))
        except Unusable as error:
            raise SpecError(Fault(part.place, "uses", f"{part.value}: {line}") for line in error.lines) from error
    for part in _text_nodes(node):
        if part.value.endswith((".yaml", ".yml")):
            try:
                inner = built_in.open_named(part, "arch")
            except SpecError:  # no architecture, or one with faults, which an ordinary check tells
                continue
            if inner.place.source not in seen:
                names += would_execute(inner, seen | {node.place.source, inner.place.source})
    return list(dict.fromkeys(names))


def join_installed() -> None:
    """Load the kinds that installed packages offer by entry points, once. One that cannot be used is left out, see `broken`."""
    if _looked:
        return
    _looked.append(True)
    entries = importlib.metadata.entry_points()
    for family in FAMILIES:
        for entry in entries.select(group=family.group):
            if why := _join_entry(entry):
                _installed[f"{family.group}: {entry.name}"] = why


def broken() -> list[str]:
    """A line for every entry point that cannot be used."""
    return [f"{name} is left out: {why}" for name, why in _installed.items()]


def loaded() -> tuple[Loaded, ...]:
    """All code from outside that this process has executed."""
    return tuple(_loaded.values())


def defining(data: Any) -> tuple[Source, ...]:
    """The sources that define the kinds from outside that plain data, or a spec, names."""
    codes = set(named_in(data).values()) | ({getattr(data, CODE)} if hasattr(data, CODE) else set())
    return tuple(one.source for one in _loaded.values() if one.source.code in codes)


def named_in(data: Any) -> dict[str, str]:
    """What defined the kinds from outside that plain data names, by kind or by `file:Class`."""
    by_name = {kind: one.source.code for one in _loaded.values() for _, spec in one.specs for kind in kinds_said(spec)}
    by_name |= {f"{one.source.name}:{name}": one.source.code for one in _loaded.values() for name in one.modules}
    return {text: by_name[text] for text in sorted(set(_texts(data)) & set(by_name))}


def forget() -> None:
    """Take out of this process all that came from outside."""
    for key in list(_loaded):
        _drop(key)
    for known in (_asked, _installed, _looked):
        known.clear()


def shipped() -> tuple[Source, ...]:
    """The sources of all that is loaded, for another process."""
    return tuple(one.source for one in _loaded.values())


def arrive(sources: Iterable[Source], folder: str | None = None) -> None:
    """Load in this process what another had loaded, under the same names; its files are written below `folder`. Raises
    ValueError where it cannot be used."""
    for source in sources:
        if source.key not in _loaded:
            try:
                _take(outside_source.unpacked(source, folder))
            except Unusable as error:
                raise ValueError(f"{source.code} cannot be used here: {error}") from error


def follow(sources: Iterable[Source]) -> None:
    """Load in this process what another of this machine had loaded, from the same files. Raises ValueError where these have
    changed since, or cannot be used."""
    for source in sources:
        if source.key in _loaded:
            continue
        try:
            now = outside_source.found(source.name if source.path is None else str(source.path), Path())
            if now.key != source.key:
                raise ValueError(f"{source.code} has changed: it is {now.code} now")
            _take(now)
        except Unusable as error:
            raise ValueError(f"{source.code} cannot be used here: {error}") from error


# From a name to kinds. ----------------------------------------------------------------------------


def _load(named: Iterable[tuple[str, Path, Place, str]]) -> None:
    """Load names (with the folder that paths begin in, and where each was said). Raises SpecError with all faults."""
    faults = []
    for name, here, place, path in named:
        try:
            source = _as_executed(outside_source.found(name, here))
            if source.key not in _loaded or source.path is None:  # of a module, an entry point may have taken one class
                for key in [key for key, one in _loaded.items() if _is_former(one.source, source)]:
                    _drop(key)
                _take(source)
        except Unusable as error:
            faults += [Fault(place, path, f"{name}: {line}") for line in error.lines]
    if faults:
        raise SpecError(faults)


def _as_executed(source: Source) -> Source:
    """The source as it was when it was executed: Python imports a module once, whatever becomes of its files."""
    known = (one.source for one in _loaded.values() if source.path is None and one.source.path is None)
    return next((one for one in known if one.name == source.name), source)


def _is_former(known: Source, new: Source) -> bool:
    """True for the same file as it was before it was changed."""
    return known.path is not None and known.path == new.path


def _take(source: Source) -> None:
    """Execute a source, and have all its kinds join. Raises Unusable, and then none has joined."""
    module = outside_source.executed(source)
    own = [thing for thing in vars(module).values() if isinstance(thing, type) and _is_own(thing, module, source)]
    try:
        _register(source, list(dict.fromkeys(own)))
    except Unusable:
        outside_source.remove(source)
        raise


def _is_own(thing: type, module: ModuleType, source: Source) -> bool:
    """True for a class that the code defines; in an installed package also in another module of it."""
    if thing.__name__.startswith("_"):
        return False
    if source.path is not None:
        return thing.__module__ == module.__name__
    return thing.__module__.partition(".")[0] == module.__name__.partition(".")[0]


def _join_entry(entry: importlib.metadata.EntryPoint) -> str:
    """Load an entry point, a class or a module; returns what is wrong with it."""
    try:
        source = _as_executed(outside_source.found(entry.module, Path()))
        module = outside_source.executed(source)
        thing = getattr(module, entry.attr, None) if entry.attr else module
        if isinstance(thing, type):
            _register(source, [thing])
        elif isinstance(thing, ModuleType):
            _take(source)
        else:
            return f"{entry.value} of {source.code} is neither a class nor a module"
    except Unusable as error:
        return f"{entry.value}: {'; '.join(error.lines)}"
    return ""


def _register(source: Source, classes: Sequence[type]) -> None:
    """Have the specs among these classes join their unions, and offer the torch modules. Raises Unusable with all faults."""
    specs: list[tuple[Family, type]] = []
    faults: list[str] = []
    joined = {cls for one in _loaded.values() for _, spec in one.specs for cls in (spec, spec.__bases__[0])}
    for cls in classes:
        family = next((f for f in FAMILIES if _is_of(cls, f)), None)
        if family is None or cls in joined or (isabstract(cls) and not _has_kind(cls)):
            continue  # a torch module, an interface of its own, or something else
        wrong = list(_wrong(cls, family)) or list(_taken(cls, family, specs))
        faults += [f"class {cls.__name__}{_line_of(cls)}: {why}" for why in wrong]
        if not wrong:
            specs.append((family, _with_code(cls, source.code)))
    modules = [cls for cls in classes if _is_torch_module(cls)]
    others = [one.source.code for one in _loaded.values() if one.modules and one.source.name == source.name]
    if modules and (other := next((code for code in others if code != source.code), None)):
        faults.append(f"is the second of this name, after {other}, so that `of` would be ambiguous; rename one of them")
    if not faults and not specs and not modules and not joined.intersection(classes):
        bases = type_hints.either([f.base[1] for f in FAMILIES])
        faults.append(
            f"defines nothing that recallmap can use, expected a frozen dataclass that is a {bases}, or a torch module for "
            "{kind: module, of: ...}"
        )
    if faults:
        raise Unusable(faults)
    for family, spec in specs:
        setattr(sys.modules[spec.__module__], spec.__name__, spec)  # so that what it makes, and pickle, find this one
        type_hints.join(_union(family), spec)
    if modules:
        if not _is_offering():
            type_hints.join(_union(FAMILIES[0]), _wrapper().TorchModule)
        _wrapper().offer({f"{source.name}:{cls.__name__}": cls for cls in modules}, source.code)
    before = _loaded.get(source.key, Loaded(source, (), ()))
    names = (*before.modules, *(cls.__name__ for cls in modules))
    _loaded[source.key] = Loaded(source, (*before.specs, *specs), tuple(dict.fromkeys(names)))


def _drop(key: tuple[str, str]) -> None:
    one = _loaded.pop(key)
    for _, spec in one.specs:
        type_hints.leave(spec)
        setattr(sys.modules[spec.__module__], spec.__name__, spec.__bases__[0])
    if one.modules:
        _wrapper().withdraw(f"{one.source.name}:{name}" for name in one.modules)
        if not _is_offering():
            type_hints.leave(_wrapper().TorchModule)
    outside_source.remove(one.source)


def _is_offering() -> bool:
    """True where loaded code has torch modules."""
    return any(one.modules for one in _loaded.values())


# Classes. -----------------------------------------------------------------------------------------


def kinds_said(spec: type) -> tuple[str, ...]:
    """The kinds that choose a spec; () where its `kind` is not a Literal."""
    said = type_hints.hints_of(spec).get("kind")
    return get_args(said) if get_origin(said) is Literal else ()


def _line_of(cls: type) -> str:
    """` in line 9`, where its source is known."""
    try:
        return f" in line {getsourcelines(cls)[1]}"
    except (OSError, TypeError):
        return ""


def _is_of(cls: type, family: Family) -> bool:
    """True for a class of a family. A base that nobody has imported has no classes."""
    module = sys.modules.get(f"recallmap.{family.base[0]}")
    base = getattr(module, family.base[1], None)
    return base is not None and issubclass(cls, base) and cls is not base


def _is_torch_module(cls: type) -> bool:
    torch = sys.modules.get("torch")
    mixers = sys.modules.get("recallmap.arch.mixers.mixer")
    inside = mixers is not None and issubclass(cls, mixers.MixerModule)
    return torch is not None and issubclass(cls, torch.nn.Module) and not isabstract(cls) and not inside


def _has_kind(cls: type) -> bool:
    try:
        return bool(kinds_said(cls))
    except Exception:  # a hint that means nothing where it stands
        return True


def _wrong(cls: type, family: Family) -> Iterator[str]:
    """What keeps a class from being a spec, and what to do."""
    if "__dataclass_fields__" not in vars(cls) or not vars(cls)["__dataclass_params__"].frozen:
        yield "expected @dataclass(frozen=True, kw_only=True) above it"
        return
    try:
        kinds = kinds_said(cls)
    except Exception as error:
        yield f"its type hints cannot be read: {type(error).__name__}: {error}; import what they name"
        return
    like = cls.__name__.lower()
    if not kinds or not all(isinstance(kind, str) for kind in kinds):
        yield f'kind must be a Literal, the name in YAML, such as kind: Literal["{like}"] = "{like}"'
    if type_hints.needed(cls) and family.noun in ("task", "sampler"):
        yield f"{type_hints.needed(cls)[0]} must have a default, for a {family.noun} is listed at its defaults"
    if CODE in cls.__dict__.get("__dataclass_fields__", {}):
        yield f"its field '{CODE}' is taken, for it says what defined the class; rename the field"
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        yield f"lacks {type_hints.either(missing).replace(' or ', ' and ')}, which every {family.base[1]} has"


def _taken(cls: type, family: Family, beside: Sequence[tuple[Family, type]]) -> Iterator[str]:
    known = type_hints.kinds_of(_union(family))
    fresh = {kind for _, spec in beside for kind in kinds_said(spec)}
    for kind in kinds_said(cls):
        if kind in known or kind in fresh or kind == WRAPPED:
            other = getattr(known.get(kind), CODE, "")
            owner = f"in {other}" if other else "in the same file" if kind in fresh else "of recallmap"
            yield f"kind '{kind}' exists already {owner}; give it another name"


def _with_code(cls: Any, code: str) -> type:
    """The spec with one more field, which says what defined it. It takes no other value, so that the record of other code is
    not read as if it were of this one."""

    def check(self: Any) -> None:
        said = getattr(self, CODE)
        if said != code:
            raise ValueError(f"{CODE} must be '{code}', got '{said}': the code has changed since; leave {CODE} out")
        if (inner := getattr(cls, "__post_init__", None)) is not None:
            inner(self)

    space = {"__post_init__": check, "__doc__": cls.__doc__, "__module__": cls.__module__}
    made = make_dataclass(
        cls.__name__,
        [(CODE, str, field(default=code, kw_only=True))],
        bases=(cls,),
        namespace=space,
        frozen=True,
    )
    made.__module__, made.__qualname__ = cls.__module__, cls.__qualname__
    return made


def _union(family: Family) -> Any:
    return getattr(import_module(f"recallmap.{family.union[0]}"), family.union[1])


def _wrapper() -> Any:
    return import_module(f"recallmap.{WRAPPER}")


def _text_nodes(node: Node) -> Iterator[Node]:
    if isinstance(node.value, str):
        yield node
    parts = node.value if isinstance(node.value, tuple) else node.value.values() if isinstance(node.value, dict) else ()
    for part in parts:
        yield from _text_nodes(part)


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    parts: Iterable[Any] = data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ()
    for part in parts:
        yield from _texts(part)
