"""From comparisons to verdicts: corrections for many comparisons, and what all of a claim's together say.

Within a claim Holm's correction holds the chance of any wrong decision at 5 %. Across claims Benjamini and Hochberg's holds the
share of wrong verdicts at 5 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from recallmap.results.analysis.comparison import ALPHA, benjamini_hochberg, holm

Verdict = Literal["reproduced", "not reproduced", "not decided", "cannot speak"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One comparison: the rows compared, their setting, and the figures as text.

    side      the side that the figures lean to
    p         two-sided p value of that side; None where seeds are too few for a test
    adjusted  p after Holm's correction within the claim
    silent    why more seeds would not help it to speak; "" where they would
    remarks   on what stands in the rows: what a mixer is whose name is that of another model
    keys      of the trials compared
    """

    who: str
    where: str
    figures: str
    side: Literal["for", "against"]
    p: float | None
    adjusted: float | None = None
    silent: str = ""
    remarks: tuple[str, ...] = field(default=(), compare=False)
    keys: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def verdict(self) -> Verdict:
        if self.silent:
            return "cannot speak"
        if self.adjusted is None or self.adjusted >= ALPHA:
            return "not decided"
        return "reproduced" if self.side == "for" else "not reproduced"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The verdict on a claim.

    evidence  its comparisons, with adjusted p values
    p         of the claim, corrected within it; None where nothing could be tested
    adjusted  p after Benjamini and Hochberg's correction across claims
    """

    evidence: tuple[Evidence, ...]
    p: float | None = None
    adjusted: float | None = None

    @property
    def verdict(self) -> Verdict:
        """Reproduced if all comparisons that can speak are for it, not reproduced if one is against it. Without records it
        cannot speak."""
        if all(one.silent for one in self.evidence):
            return "cannot speak"
        if self.adjusted is None or self.adjusted >= ALPHA:
            return "not decided"
        against = any(one.verdict == "not reproduced" for one in self.evidence)
        return "not reproduced" if against else "reproduced"


def judge(claims: Mapping[str, Sequence[Evidence]]) -> dict[str, Judgement]:
    """The verdicts on claims by their comparisons, both by name. They are judged together, because each claim more is one more
    chance to be wrong."""
    corrected = {name: tuple(_corrected(evidence)) for name, evidence in claims.items()}
    tested = {name: p for name, evidence in corrected.items() if (p := _of_claim(evidence)) is not None}
    adjusted = dict(zip(tested, benjamini_hochberg(list(tested.values())), strict=True))
    return {
        name: Judgement(evidence=evidence, p=tested.get(name), adjusted=adjusted.get(name))
        for name, evidence in corrected.items()
    }


def _corrected(evidence: Sequence[Evidence]) -> list[Evidence]:
    raw = {at: one.p for at, one in enumerate(evidence) if one.p is not None and not one.silent}
    adjusted = dict(zip(raw, holm(list(raw.values())), strict=True))
    return [replace(one, adjusted=adjusted.get(at)) for at, one in enumerate(evidence)]


def _of_claim(evidence: Sequence[Evidence]) -> float | None:
    """The p value of a claim: one comparison against fells it, all that can speak are needed to hold it up."""
    speaking = [one for one in evidence if not one.silent]
    adjusted = [one.adjusted for one in speaking if one.adjusted is not None]
    if not adjusted:
        return None
    against = [one.adjusted for one in speaking if one.adjusted is not None and one.side == "against"]
    if against:
        return min(against)
    return max(adjusted) if len(adjusted) == len(speaking) else 1.0
