"""Claims and excerpts of `results`, read from YAML and checked against the known tasks and mixers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from recallmap.search.documents import type_hints
from recallmap.search.documents.built_in import Source, document
from recallmap.search.documents.nodes import Fault, Node, SpecError, fault
from recallmap.search.documents.type_hints import Opener, either, guess

if TYPE_CHECKING:
    from recallmap.results.publishing.claims import Claim
    from recallmap.results.publishing.readme_tables import Excerpt


def read_claims(source: Source = "claims") -> Mapping[str, Claim]:
    """The claims of a file by name; without a file, those of the package. Raises SpecError with the places of all faults:
    unknown keys, kinds of rules, tasks and mixers, and repeated names."""
    from recallmap.results.publishing.claim_rules import Average, Which
    from recallmap.results.publishing.claims import Claims

    node = document(source, "publishing")
    openers = {Which: _named_in(node, "models"), Average: _named_in(node, "averages")}
    faults = list(_unknown_names(node))
    try:
        claims: Mapping[str, Claim] = type_hints.read(Claims, node, openers=openers, stand_ins=("a name",)).claims
    except SpecError as error:
        faults += error.faults
    if faults:  # a named part is read for every rule that names it, and reported once
        raise SpecError({(f.place, f.message): f for f in reversed(faults)}.values())
    return claims


def read_excerpts(source: Source = "excerpts") -> Mapping[str, Excerpt]:
    """The excerpts of a file by name; without a file, those of the package. Raises SpecError."""
    from recallmap.results.publishing.readme_tables import Excerpt

    found: Mapping[str, Excerpt] = type_hints.read(Mapping[str, Excerpt], document(source, "publishing"))
    return found


def _named_in(node: Node, section: str) -> Opener:
    """An opener that looks names up in a section of the document."""
    parts = node.get(section)
    written = parts.value if parts is not None and isinstance(parts.value, dict) else {}
    known = {name: part for name, part in written.items() if isinstance(part.value, dict)}

    def opened(naming: Node) -> Node:
        name = naming.value
        if name not in known:
            may = f"{either(list(known))} or a mapping" if known else "a mapping"
            raise fault(naming.place, "", f"no '{name}' in {section}, expected {may}{guess(name, list(known))}")
        return known[name]

    return opened


def _unknown_names(node: Node) -> Iterator[Fault]:
    """A fault for every unknown task and mixer in a file of claims."""
    from recallmap.arch.mixers import Mixer
    from recallmap.synth.tasks import Task

    tasks, mixers = (list(type_hints.kinds_of(union)) for union in (Task, Mixer))
    known = {"tasks": ("task", tasks), "columns": ("task", tasks), "has": ("mixer", mixers), "lacks": ("mixer", mixers)}

    def within(part: Node, path: str) -> Iterator[Fault]:
        for key, below in part.value.items() if isinstance(part.value, dict) else ():
            if key in known:
                yield from unknown(below, f"{path}.{key}", *known[key])
            else:
                yield from within(below, f"{path}.{key}")

    def unknown(part: Node, path: str, what: str, names: list[str]) -> Iterator[Fault]:
        if isinstance(part.value, tuple):
            for index, item in enumerate(part.value):
                yield from unknown(item, f"{path}[{index}]", what, names)
        elif isinstance(part.value, str) and part.value not in names:
            meant = guess(part.value, names)
            yield Fault(part.place, path, f"unknown {what} '{part.value}', expected {either(names)}{meant}")

    for section, parts in node.value.items():
        for name, part in parts.value.items() if isinstance(parts.value, dict) else ():
            yield from within(part, f"{section}.{name}")
