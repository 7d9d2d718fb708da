"""The table of validity, and the sentences that its figures allow."""

from __future__ import annotations

from collections.abc import Sequence

from recallmap.results.analysis.comparison import ALPHA
from recallmap.results.analysis.validity import FEWEST_ARCHITECTURES, FEWEST_PAPERS, PREDICTORS, Agreement

_HEAD = f"""Rank correlations within papers, pooled over papers; those of one lineage count as one. In brackets the 95 %
bootstrap interval over architectures, then the range that leaving one architecture out gives. p is of permutations of
architectures, two-sided; adjusted by Holm among the primary tests. Below {FEWEST_ARCHITECTURES} architectures or \
{FEWEST_PAPERS} papers there is no number.
"""


def text_of(found: Sequence[Agreement]) -> str:
    """Markdown: the table, one row for each predictor and outcome, and a sentence on each synthetic predictor."""
    lines = ["| predictor | of | architectures | papers | correlation | leaving one out | p | adjusted |"]
    lines.append("| --- | --- | ---: | ---: | --- | --- | ---: | ---: |")
    lines += [_row(one) for one in found]
    told = [sentence(one, found) for one in found if one.predictor in PREDICTORS]
    return "\n".join([_HEAD, *lines, "", *(f"* {text}" for text in told), ""])


def sentence(one: Agreement, found: Sequence[Agreement]) -> str:
    """What the figures say of a predictor: whether it orders as papers do, and whether that is more than the baselines do."""
    about = f"{one.predictor} and {one.outcome}"
    if one.correlation is None:
        return f"{about}: too little to say ({one.architectures} architectures, {one.papers} papers)."
    p = one.p if one.adjusted is None else one.adjusted
    shown = p is not None and p < ALPHA and one.correlation > 0
    said = "orders architectures as papers do" if shown else "is not shown to order architectures as papers do"
    rivals = [b for b in found if b.predictor.endswith(f"where {one.predictor} is known") and b.outcome == one.outcome]
    above = [b.predictor.partition(",")[0] for b in rivals if (b.correlation or 0.0) >= one.correlation]
    rest = f"; {' and '.join(above)} alone {'do' if len(above) > 1 else 'does'} it as well or better" if above else ""
    return f"{about}: {said} ({one.correlation:+.2f}){rest}."


def _row(one: Agreement) -> str:
    known = f"| {one.predictor} | {one.outcome} | {one.architectures} | {one.papers} |"
    if one.correlation is None or one.interval is None or one.leaving_out is None or one.p is None:
        return f"{known} | | | |"
    span, left = (f"[{low:+.2f}, {high:+.2f}]" for low, high in (one.interval, one.leaving_out))
    p, last = ("" if p is None else f"{p:.3f}" if p >= 0.001 else "<0.001" for p in (one.p, one.adjusted))
    return f"{known} {one.correlation:+.2f} {span} | {left} | {p} | {last} |"
