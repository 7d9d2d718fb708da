"""The tables of validity, and the sentences that its figures allow."""

from __future__ import annotations

from collections.abc import Sequence

from recallmap.results.analysis.comparison import told
from recallmap.results.analysis.validity import (
    BLIND_ONLY,
    BLIND_TEST,
    FEWEST_ARCHITECTURES,
    FEWEST_PAPERS,
    LEAST,
    MAD,
    PREDICTORS,
    PRIMARY,
    Agreement,
    rival,
    verdict,
)

HEAD = f"""Rank correlations within papers, pooled over papers; those of one lineage count as one. In brackets the 95 %
bootstrap interval over architectures, then the range that leaving one architecture out gives. p is of permutations of
architectures, two-sided; adjusted by Holm among the primary tests. Below {FEWEST_ARCHITECTURES} architectures or \
{FEWEST_PAPERS} papers there is no number.
The rule: refuted below {LEAST:g} or below the size of the state, shown where it is neither and the adjusted
p is below 0.05, else open.
"""

_SAID = {
    "shown": "orders architectures by {} as papers do",
    "open": "is not shown to order architectures by {} as papers do",
    "refuted": "does not order architectures by {} as papers do, by the rule",
    "": "is not judged as an order by {}, for want of the size of the state",
}


def text_of(found: Sequence[Agreement], unseen: Sequence[str] = (), tasks: Sequence[Agreement] = ()) -> str:
    """Markdown: the table, one row for each predictor and outcome, a sentence on each predictor, and the tasks of MAD by
    themselves (`by_task`) where one has a number. `unseen` are the architectures for a blind test."""
    lines = ["| predictor | of | architectures | papers | correlation | leaving one out | p | adjusted |"]
    lines.append("| --- | --- | ---: | ---: | --- | --- | ---: | ---: |")
    lines += [f"| {' | '.join(cells(one))} |" for one in found]
    told = [sentence(one, found) for one in found if one.predictor in (*PREDICTORS, BLIND_TEST[0])]
    if unseen:
        told.append(f"For a blind test: recall is published, and no score of MAD is here, of {', '.join(unseen)}.")
    by_task = []
    if any(one.correlation is not None for one in tasks):
        by_task = ["Each task of MAD by itself against recall, which is an exploration:", "", task_table(tasks)]
    return "\n".join([HEAD, *lines, "", *(f"* {text}" for text in told), "", *by_task])


def task_table(found: Sequence[Agreement]) -> str:
    """Markdown: a row for each task of MAD by itself (`by_task`), with the size of the state on its rows and the correlation
    over the architectures of the blind test alone."""
    heads = (
        *("task of MAD", "architectures", "papers", "correlation", "leaving one out", "adjusted p"),
        *("state size on the same", "blind architectures alone"),
    )
    lines = [f"| {' | '.join(heads)} |", "| --- | ---: | ---: | --- | --- | ---: | --- | --- |"]
    named = {one.predictor: one for one in found}
    for task in MAD:
        if task in named:
            one = named[task]
            _, _, *first, _, last = cells(one)
            beside = [rival(one, found), named.get(f"{BLIND_ONLY} {task}")]
            told = ["" if other is None else _correlation(other) for other in beside]
            lines.append(f"| {' | '.join([task.replace('_', ' '), *first, last, *told])} |")
    return "\n".join([*lines, ""])


def primary_table(found: Sequence[Agreement]) -> str:
    """Markdown: the primary tests and the blind one, each beside the size of the state on its rows, and what the rule says."""
    heads = (
        *("predictor", "of", "architectures", "papers", "correlation", "leaving one out", "adjusted p"),
        *("state size on the same", "by the rule"),
    )
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | ---: | ---: | --- | --- | ---: | --- | --- |"]
    for one in found:
        if (one.predictor, one.outcome) in (*PRIMARY, BLIND_TEST):
            *first, _, last = cells(one)
            state = rival(one, found)
            beside = "" if state is None else _correlation(state)
            lines.append(f"| {' | '.join([*first, last, beside, verdict(one, found) or 'too few'])} |")
    return "\n".join([*lines, ""])


def sentence(one: Agreement, found: Sequence[Agreement]) -> str:
    """What the figures say of a predictor: whether it orders as papers do, and whether that is more than the baselines do."""
    if one.correlation is None:
        return f"{one.predictor} and {one.outcome}: too little to say ({one.architectures} architectures, {one.papers} papers)."
    rivals = [b for b in found if b.predictor.endswith(f"where {one.predictor} is known") and b.outcome == one.outcome]
    above = [
        b.predictor.partition(",")[0] for b in rivals if b.correlation is not None and b.correlation >= one.correlation
    ]
    *others, last = above or [""]
    named = f"{', '.join(others)} and {last}" if others else last
    rest = f"; {named} alone {'do' if others else 'does'} as well or better" if above else ""
    said = _SAID[verdict(one, found)].format(one.outcome)
    return f"{one.predictor} {said} ({one.correlation:+.2f}){rest}."


def cells(one: Agreement) -> list[str]:
    """The cells of a row: predictor, outcome, architectures, papers, correlation, leaving one out, p, adjusted."""
    known = [one.predictor, one.outcome, str(one.architectures), str(one.papers)]
    if one.correlation is None or one.leaving_out is None:
        return [*known, "", "", "", ""]
    low, high = one.leaving_out
    return [*known, _correlation(one), f"[{low:+.2f}, {high:+.2f}]", told(one.p), told(one.adjusted)]


def _correlation(one: Agreement) -> str:
    if one.correlation is None or one.interval is None:
        return ""
    low, high = one.interval
    return f"{one.correlation:+.2f} [{low:+.2f}, {high:+.2f}]"
