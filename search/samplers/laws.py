"""Laws of samplers, checked on a small space of numbers and choices. `verdicts` runs all of them.

A search makes a sampler for each point, seeded by the point's place; so do the laws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from recallmap.search.samplers.sampler import SamplerSpec
from recallmap.synth.laws import Verdict

POINTS, GENERATION = 12, 4
LEAST_DIFFERENT = 7  # of these points

RATES, HEADS, GATES = (1e-4, 1.0), (1, 16), ("none", "sigmoid", "silu")  # bounds of a logarithm, bounds, a choice

Point = dict[str, Any]


def inside(spec: SamplerSpec, goals: int = 1) -> Verdict:
    """Check that every point lies in the space, and that points differ."""
    law = "inside its space"
    points = proposed(spec, goals)
    for number, point in enumerate(points):
        for name, space, within in (
            ("rate", RATES, RATES[0] <= point["rate"] <= RATES[1]),
            ("heads", HEADS, point["heads"] in range(HEADS[0], HEADS[1] + 1)),
            ("gate", GATES, point["gate"] in GATES),
        ):
            if not within:
                return Verdict(law, f"point {number} (from 0) has {name} {point[name]!r}; expected one of {space}")
    if (different := len({tuple(point.values()) for point in points})) < LEAST_DIFFERENT:
        fault = f"of {POINTS} points {different} are different; expected {LEAST_DIFFERENT} at least"
        return Verdict(law, f"{fault}: draw by the seed of `build`")
    return Verdict(law)


def reproducible(spec: SamplerSpec, goals: int = 1) -> Verdict:
    """Check that the same seed gives the same points, and another seed others."""
    law, points = "same seed, same points", proposed(spec, goals)
    again = proposed(spec, goals)
    if points != again:
        number = next(at for at, pair in enumerate(zip(points, again, strict=True)) if pair[0] != pair[1])
        fault = (
            f"with the same seed, point {number} (from 0) is {again[number]} after {points[number]}; expected the same"
        )
        return Verdict(law, f"{fault}: take all chance from the seed of `build`, and keep nothing")
    if points == proposed(spec, goals, seed=1):
        return Verdict(
            law, f"another seed gives the same {POINTS} points; expected others: hand on the seed of `build`"
        )
    return Verdict(law)


def apart(spec: SamplerSpec) -> Verdict:
    """Check that `build` makes a new Optuna sampler each time."""
    from optuna.samplers import BaseSampler

    law, made = "a sampler for each point", [spec.build(0, GENERATION) for _ in range(2)]
    if wrong := next((type(one).__name__ for one in made if not isinstance(one, BaseSampler)), ""):
        return Verdict(law, f"`build` makes a {wrong}; expected an optuna.samplers.BaseSampler")
    return Verdict(law, "`build` gives the same sampler twice; expected a new one" if made[0] is made[1] else "")


def verdicts(spec: SamplerSpec) -> list[Verdict]:
    """The verdict of every law on a sampler, with one goal and with two. Errors of the sampler are faults of the law."""
    one_goal = "it serves one goal"
    found = []
    for name, law in (("inside its space", inside), ("same seed, same points", reproducible)):
        found.append(_tried(name, law, spec, 1))
        two = f"{name}, two goals"
        several = _tried(two, law, spec, 2)._replace(law=two) if spec.several_goals else Verdict(two, skipped=one_goal)
        found.append(several)
    return [*found, _tried("a sampler for each point", apart, spec)]


def proposed(spec: SamplerSpec, goals: int = 1, *, seed: int = 0) -> list[Point]:
    """The points that a sampler proposes, in generations, where goals are known functions of them."""
    import optuna

    spec.check(max(GENERATION, spec.least_generation))
    quiet = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(directions=["maximize", "minimize"][:goals])
        points: list[Point] = []
        while len(points) < POINTS:
            asked: list[tuple[Any, Point]] = []
            for _ in range(GENERATION):
                study.sampler = spec.build(1000 * seed + len(points) + len(asked), GENERATION)
                trial = study.ask()
                asked.append((trial, _drawn(trial)))
            for trial, point in asked:
                points.append(point)
                study.tell(trial, _goals(point)[:goals])
    finally:
        optuna.logging.set_verbosity(quiet)
    return points


def _drawn(trial: Any) -> Point:
    return {
        "rate": trial.suggest_float("rate", *RATES, log=True),
        "heads": trial.suggest_int("heads", *HEADS),
        "gate": trial.suggest_categorical("gate", GATES),
    }


def _goals(point: Point) -> Sequence[float]:
    distance = (point["rate"] - 0.3) ** 2 + (point["heads"] / 16 - 0.5) ** 2
    return -distance - (point["gate"] == "none"), float(point["heads"])


def _tried(law: str, check: Callable[..., Verdict], spec: SamplerSpec, *rest: Any) -> Verdict:
    try:
        return check(spec, *rest)
    except Exception as error:  # whatever code of one's own does
        why = str(error).partition("\n")[0]
        return Verdict(
            law, f"it cannot be run: {type(error).__name__}: {why}; see recallmap.search.samplers.sampler.SamplerSpec"
        )
