"""Points of the page's figures, with their spread over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from recallmap.results.analysis.confidence import FEWEST_TO_DECIDE, deviation
from recallmap.results.analysis.measures import Measure
from recallmap.results.analysis.outside_code import has_unknown_state
from recallmap.results.analysis.pareto import front, front_band, front_shares
from recallmap.results.page import thinning
from recallmap.results.page.name_index import Index, carried

DRAWS = 500  # of seeds, for the front's band

NEAR = 0.05  # distance from the best within which a smaller state is worth a mention


def interval_of(means: list[dict[str, Any]]) -> dict[str, Any]:
    """The means with the share of bootstrap draws of seeds that put them on the front, and the front's band, which needs five
    seeds of each. A mean whose state is unknown is `apart`, on no front."""
    known, apart = [m for m in means if not m.get("apart")], [m for m in means if m.get("apart")]
    seeds, states = [m.pop("seeds") or [m["mean"]] for m in known], [m["state"] for m in known]
    several = any(len(own) > 1 for own in seeds)
    shares: Iterable[float] = (
        front_shares(seeds, states, np.random.default_rng(0), draws=DRAWS if several else 1) if known else ()
    )
    shared = [{**mean, "share": round(float(share), 2)} for mean, share in zip(known, shares, strict=True)]
    shared += [{**{name: value for name, value in m.items() if name != "seeds"}, "share": 0.0} for m in apart]
    return {
        "means": thinning.means(shared),
        "of": len(means),
        "band": front_band(seeds, states, np.random.default_rng(0), draws=DRAWS)
        if known and min(map(len, seeds)) >= FEWEST_TO_DECIDE
        else [],
    }


def on_front(means: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Which of the means no other beats in both score and size of state. One whose state is unknown is on no front."""
    known = [mean for mean in means if not mean.get("apart")]
    kept = iter(front([(mean["mean"], mean["state"]) for mean in known], (True, False))) if known else iter(())
    return [not mean.get("apart") and bool(next(kept)) for mean in means]


def point_of(own: list[Measure], index: Index) -> dict[str, Any]:
    """The mean over seeds of one architecture, over all the settings that it was measured on."""
    seeds = common_fields(own)
    values = [float(np.mean([m.values[seed] for m in own])) for seed in seeds]
    return {
        "arch": index.archs.of(own[0].arch),
        "row": index.rows.of(own[0].row),
        "line": index.line[own[0].row],
        "state": max(m.state_bytes for m in own),
        "mean": carried(float(np.mean(values))),
        "half": carried(deviation(values)),
        "trials": [index.trial[key] for key in own[0].keys],
        "seeds": values,
        **apart_of(own),
    }


def apart_of(own: Sequence[Measure]) -> dict[str, Any]:
    """{"apart": True} for an architecture whose state is unknown."""
    return {"apart": True} if has_unknown_state(own[0].leaves) else {}


def common_fields(own: Sequence[Measure]) -> list[int]:
    """The seeds that all measures have."""
    return sorted(set.intersection(*(set(m.values) for m in own)))


def millionths(score: float | None) -> int | None:
    return None if score is None else round(1_000_000 * score)
