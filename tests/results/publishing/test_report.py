"""What a report says of a claim: each trial once, by the seeds that were to decide, and what a mixer is beneath its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from recallmap.results.publishing.claim_rules import Above, Which
from recallmap.results.publishing.claims import Claim
from recallmap.results.publishing.report import report
from recallmap.results.record import Record

Make = Callable[..., Record]
RULE = Above(better=Which(archs=("a",)), worse=Which(archs=("b",)))


def seeds(make: Make, arch: str, score: float, own: Sequence[int], **rest: Any) -> list[Record]:
    order = {"a": 1, "b": 3}[arch]  # so that differences seed by seed vary
    return [make(arch=arch, seed=n, score=score + order * n % 5 / 1000, **rest) for n in own]


def said_of(files: dict[str, list[Record]], **claim: Any) -> str:
    own = Claim(text="A recalls more than b.", source="a paper", rule=RULE, **claim)
    return report(files, {"better": own}).text


def test_the_same_trials_in_two_files_are_one_comparison(make: Make) -> None:
    one, two = (seeds(make, "a", 0.9, range(k, k + 6)) + seeds(make, "b", 0.5, range(k, k + 6)) for k in (0, 6))
    assert "| **reproduced** | 1 for |" in said_of({"first": one, "second": one})
    assert "| **reproduced** | 2 for |" in said_of({"first": one, "second": two})


def test_where_a_plan_names_the_seeds_that_decide_others_do_not(make: Make) -> None:
    early = seeds(make, "a", 0.9, range(6)) + seeds(make, "b", 0.5, range(6))
    late = seeds(make, "a", 0.5, range(10, 18)) + seeds(make, "b", 0.9, range(10, 18))
    assert "| **not reproduced** | 1 against |" in said_of({"all": early + late}, seeds=(10, 17))
    assert "| **reproduced** | 1 for |" in said_of({"all": early + late}, seeds=(0, 5))


def test_a_mixer_whose_name_is_that_of_another_model_is_told_apart(make: Make) -> None:
    baseline = {"stack": [{"mixer": {"kind": "mamba2", "form": "mesanet"}}]}
    records = seeds(make, "a", 0.9, range(6)) + seeds(make, "b", 0.5, range(6), arch_dials=baseline)
    assert "Names. b: MesaNet's baseline of that name, which is no state-space model" in said_of({"all": records})
    assert "Names." not in said_of({"all": seeds(make, "a", 0.9, range(6)) + seeds(make, "b", 0.5, range(6))})
