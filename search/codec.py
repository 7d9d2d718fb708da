"""Strict reading and writing of YAML specs: all faults at once, each with its place and what is expected there.

YAML's traps are closed. Numbers are decimal (`1e-3` is one; `012`, `0x10`, `1_000`, `1:30` and dates are none), only
true and false are truth values, only `null`, `~` and nothing are null, all else is text. Duplicate keys, anchors,
aliases, merge keys, tags, tabs and second documents are refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recallmap.search.documents import outside, type_hints
from recallmap.search.documents.built_in import BUILT_IN as BUILT_IN
from recallmap.search.documents.built_in import FORMER as FORMER
from recallmap.search.documents.built_in import TELLING as TELLING
from recallmap.search.documents.built_in import Source, document, is_path, openers, settings_of
from recallmap.search.documents.built_in import about as about
from recallmap.search.documents.built_in import builtin as builtin
from recallmap.search.documents.built_in import from_plain as from_plain
from recallmap.search.documents.built_in import named as named
from recallmap.search.documents.built_in import one as one
from recallmap.search.documents.built_in import open_arch as open_arch
from recallmap.search.documents.built_in import open_named as open_named
from recallmap.search.documents.built_in import sort_of as sort_of
from recallmap.search.documents.content_key import canonical as canonical
from recallmap.search.documents.content_key import key as key
from recallmap.search.documents.content_key import plain as plain
from recallmap.search.documents.nodes import Node, Place, patched
from recallmap.search.documents.publishing import read_claims as read_claims
from recallmap.search.documents.publishing import read_excerpts as read_excerpts
from recallmap.search.documents.yaml_text import MAX_BYTES as MAX_BYTES
from recallmap.search.documents.yaml_text import MAX_DIGITS as MAX_DIGITS
from recallmap.search.documents.yaml_text import dump as dump
from recallmap.search.documents.yaml_text import override
from recallmap.search.documents.yaml_text import parse as parse
from recallmap.search.documents.yaml_text import plain_scalar as plain_scalar

if TYPE_CHECKING:
    from recallmap.arch.backbone import BackboneSpec
    from recallmap.search.study.spec import StudySpec
    from recallmap.synth.tasks import Task

# Doors. -------------------------------------------------------------------------------------------


def read_task(source: Source, *, overrides: Sequence[str] = ()) -> Task:
    """A task from a file, a mapping, or its kind alone, with `option=value` laid over it. Raises SpecError."""
    node = outside.ready(task_document(source))
    for text in overrides:
        node = patched(node, override(text, door="option", like="length=32"))
    task: Task = type_hints.read(_hint("task"), node, also=outside.USES)
    return task


def read_arch(source: Source) -> BackboneSpec:
    """An architecture from a file, a name of the zoo, or a mapping. Raises SpecError."""
    arch: BackboneSpec = type_hints.read(_hint("arch"), outside.ready(document(source, "arch")), also=outside.USES)
    return arch


def read_study(source: Source, *, overrides: Sequence[str] = ()) -> StudySpec:
    """A study from a file, a built-in name, or a mapping, with `path=value` laid over it. Raises SpecError.

    Every trial of the study is read too (for a search every corner), so that all faults are known before any is trained.
    """
    from recallmap.search.study import overlay
    from recallmap.search.study.spec import checked

    whole = outside.ready(document(source, "study"))
    return checked(overlay.with_budget(whole, [override(text) for text in overrides]))


def read_suite(name: str, tier: str) -> list[dict[str, Any]]:
    """The settings of a published suite as patches of a trial. Raises SpecError."""
    return [setting.plain() for setting in settings_of(document(name, "suite"), tier)]


def read_published(name: str) -> dict[str, Any]:
    """Published figures with their sources. Raises SpecError."""
    data: dict[str, Any] = document(name, "published").plain()
    return data


def read_language() -> dict[str, Any]:
    """Published figures of language models, with their sources. Raises SpecError."""
    data: dict[str, Any] = document("models", "language").plain()
    return data


def schema(what: str) -> dict[str, Any]:
    """The JSON schema of a task, an arch, a trial or a study, for editors."""
    from recallmap.search.documents import json_schema as schemas

    outside.join_installed()
    found = schemas.of(_hint(what), named=openers() if what in ("trial", "study") else ())
    named = {"arch": "BackboneSpec", "study": "StudySpec"}.get(what)
    if named is not None:
        uses = {"description": outside.ABOUT_USES, "type": "array", "items": {"type": "string"}}
        found["$defs"][named]["properties"]["uses"] = uses
    if what == "trial":  # without a kind it is a model trained once
        plain, *others = (spec.__name__ for spec in type_hints.members_of(_hint("trial")))
        told = [{"$ref": f"#/$defs/{name}", "required": ["kind"]} for name in others]
        found["anyOf"] = [{"$ref": f"#/$defs/{plain}"}, *told]
    if what == "study":  # its base trial may leave out what the space varies
        whole = schema("trial")
        for spec in type_hints.members_of(_hint("trial")):
            whole["$defs"][spec.__name__]["required"] = []
        found["$defs"] = {**whole["$defs"], **found["$defs"]}
        found["$defs"]["StudySpec"]["properties"]["trial"] = {"anyOf": whole["anyOf"]}
    return found


def task_document(source: Source) -> Node:
    """As `document`; a kind alone stands for that task at its defaults."""
    kinds = list(type_hints.kinds_of(_hint("task")))
    if isinstance(source, str) and (source in kinds or not (is_path(source) or os.path.exists(source))):
        return Node(source, Place("task"), text=source)
    return document(source, "task")


def _hint(what: str) -> Any:
    """The type of a document. torch comes with all but tasks, hence no import before it is asked for."""
    if what == "task":
        from recallmap.synth.tasks import Task

        return Task
    if what == "arch":
        from recallmap.arch.backbone import BackboneSpec

        return BackboneSpec
    if what == "trial":
        from recallmap.search.trials import Trial

        return Trial
    if what == "study":
        from recallmap.search.study.spec import StudySpec

        return StudySpec
    raise ValueError(f"what must be task, arch, trial or study, got '{what}'")
