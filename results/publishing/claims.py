"""Claims of papers as data: the text, its source, and the rule by which records decide it.

`claims.yaml` holds them; the codec of `search` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from recallmap.results.publishing.claim_rules import Average, Rule, Which


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One claim. Raises ValueError where `text` or `source` is empty, or `text` does not end as a sentence.

    text    the claim as we read the source
    source  paper, with its section, table or figure
    rule    how records decide it
    tasks   kinds of tasks whose records count; empty: all
    seeds   the lowest and the highest seed that decide, where a plan said so beforehand; None: all
    regime  how the records differ from what the claim is about, where they cannot speak for that; "" where they can
    remark  what we take the reason to be, as far as the committed records go
    """

    text: str
    source: str
    rule: Rule
    tasks: tuple[str, ...] = ()
    seeds: tuple[int, int] | None = None
    regime: str = ""
    remark: str = ""

    def __post_init__(self) -> None:
        if not self.text.endswith("."):
            raise ValueError(f"text must be a sentence that ends with a full stop, got '{self.text}'")
        if not self.source:
            raise ValueError("source must name the paper and the place in it, got ''")
        if self.seeds is not None and self.seeds[0] > self.seeds[1]:
            raise ValueError(f"seeds must be the lowest and the highest, got {list(self.seeds)}")


@dataclass(frozen=True, kw_only=True)
class Claims:
    """A file of claims, by name, and the parts that several rules share. A rule names such a part where it would otherwise
    write it out; the reader puts the part in its place.

    models    which measures a rule picks
    averages  over which columns of tasks a rule averages
    """

    claims: Mapping[str, Claim]
    models: Mapping[str, Which] = field(default_factory=dict)
    averages: Mapping[str, Average] = field(default_factory=dict)
