"""Reasons for which a comparison cannot speak, computed from the records. More seeds would not help."""

from __future__ import annotations

from collections.abc import Sequence

from recallmap.results.analysis.measures import Measure, at_ceiling, edge_of, mean_of, way
from recallmap.results.score_tables.table import more_is_better

LEARNED = 0.1  # of the way from chance to the ceiling


def silence(a: Measure, b: Measure, *, tells_apart: bool = False) -> str:
    """Why a comparison of two measures cannot speak; "" where it can.

    Both are at the ceiling, and the setting does not tell others apart (`tells_apart`). Or neither mean comes a tenth of the
    way from chance to the ceiling. Or one failed to train: where it was trained, of a mix on all of its settings, no seed comes
    so far. Or the better one failed with some seeds, which its mean lacks. Or the worse one was best at the edge of the grid of
    learning rates, so that a rate beyond it may be better; or has the most seeds under hyper-parameters that are not the best.
    """
    if at_ceiling(a) and at_ceiling(b) and not tells_apart:
        return "both are at the ceiling"
    if near_chance(a) and near_chance(b):
        return "both are near chance"
    if failed := [m for m in (a, b) if failed_to_train(m)]:
        return f"{_names(failed)} failed to train"
    worse, better = sorted((a, b), key=mean_of, reverse=not more_is_better(a.metric))
    if better.lost:
        return f"of {better.row} the mean lacks seeds that failed ({better.lost})"
    return ill_chosen(worse)


def near_chance(measure: Measure) -> bool:
    """Whether the mean is less than a tenth of the way from chance to the ceiling; not where either is unknown."""
    if measure.chance is None or measure.ceiling is None:
        return False
    return way(mean_of(measure), measure.chance, measure.ceiling) < LEARNED


def failed_to_train(measure: Measure) -> bool:
    """Whether no seed has learned what it was trained on."""
    return bool(measure.trained) and max(measure.trained.values()) < LEARNED


def ill_chosen(measure: Measure) -> str:
    """Says that a measure below the ceiling is best at the edge of its grid, or that other hyper-parameters are better by seeds
    that have both; "" where neither is so."""
    if edge := edge_of([measure]):
        return f"{measure.row} is best at the grid's edge, the {edge} learning rate"
    if measure.surpassed and not at_ceiling(measure):
        seeds = measure.surpassed
        return f"{measure.row} has most seeds under hyper-parameters that are worse than others by the {seeds} that have both"
    return ""


def _names(own: Sequence[Measure]) -> str:
    return " and ".join(m.row for m in own)
