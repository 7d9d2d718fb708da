"""Every architecture of the zoo builds, trains in a cohort and decodes what it has read."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree
from typer.testing import CliRunner

from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.cost import cost
from recallmap.arch.mixers import DeltaNet
from recallmap.arch.stack import flatten
from recallmap.search import codec
from recallmap.search.cli.app import app
from recallmap.search.documents.nodes import SpecError
from recallmap.search.proposers.found_architecture import STORY, story_lacks
from recallmap.search.training.run_cohort import run_cohort
from recallmap.search.trial import Data, Training, TrialSpec
from recallmap.synth.tasks import Mqar

TASK = Mqar(vocab=32, length=16, pairs=2)
ZOO = sorted(codec.builtin("arch"))
of_the_zoo = pytest.mark.parametrize("name", ZOO)


def trained(name: str, steps: int) -> None:
    """Two members, of which each must end up elsewhere, and with a whole record."""
    spec = TrialSpec(
        task=TASK,
        arch=codec.read_arch(name),
        training=Training(steps=steps, batch=2, evaluations=1),
        data=Data(validation=2, test=2),
    )
    records = run_cohort([spec, replace(spec, seed=1, training=replace(spec.training, lr=3e-3))])
    assert [(r.status, r.error, r.arch, r.steps) for r in records] == [("done", None, spec.arch.name, steps)] * 2
    losses = [r.scores["loss"] for r in records]
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[0] != losses[1]


@of_the_zoo
def test_a_file_is_found_under_the_name_it_gives_itself(name: str) -> None:
    assert codec.named("arch")[codec.read_arch(name).name] == codec.builtin("arch")[name]


def test_what_a_search_found_tells_its_story() -> None:
    """See "Architectures that a search found" in arch/README.md."""
    found = {
        name: file.read_text(encoding="utf-8")
        for name, file in codec.builtin("arch").items()
        if name.startswith("found_")
    }
    assert {name: story_lacks(text) for name, text in found.items()} == {name: [] for name in found}
    assert story_lacks(codec.builtin("arch")["samba"].read_text(encoding="utf-8")) == list(STORY)


@pytest.mark.parametrize(
    ("former", "name", "key"),
    [
        ("gla", "gla_mesanet", "babfe36abba8ddf6bac8bc11ec02cb7ae1854f3c2e673fb6495c27d5a26a89bd"),
        ("mamba2", "mamba2_mesanet", "49ecf5a394493469e199e251a2378b402c7d6e39fff58569b8e4b6466256f4d9"),
    ],
)
def test_a_former_name_is_the_same_architecture_under_the_key_it_always_had(former: str, name: str, key: str) -> None:
    assert codec.read_arch(former) == codec.read_arch(name)
    assert codec.key(codec.read_arch(former)) == key
    said = [CliRunner().invoke(app, [verb, one]) for verb in ("cost", "check") for one in (former, name)]
    assert [result.exit_code for result in said] == [0] * 4
    assert said[0].output == said[1].output
    assert (former in ZOO, name in ZOO) == (False, True)


def test_no_architecture_of_the_zoo_reads_by_another_scale_than_the_published_layer() -> None:
    blocks = ((name, block) for name in ZOO for block in flatten(codec.read_arch(name).stack))
    assert not [name for name, block in blocks if "scale 1," in " ".join(block.mixer.differs())]


def test_the_zoos_deltanet_is_the_published_layer() -> None:
    for block in flatten(codec.read_arch("deltanet").stack):
        assert block.mixer == DeltaNet(heads=8, out_gate=False, scale="key_dim")
        assert block.mixer.differs() == ()


@of_the_zoo
def test_it_trains_in_a_cohort(name: str) -> None:
    trained(name, steps=2)


@of_the_zoo
@pytest.mark.slow
def test_it_trains_twenty_steps(name: str) -> None:
    trained(name, steps=20)


@of_the_zoo
def test_it_decodes_what_it_says_in_parallel(name: str) -> None:
    spec = codec.read_arch(name)
    model = spec.build(vocab=TASK.vocab, seed=0).double()
    tokens = torch.randint(TASK.vocab, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole = model(tokens)
        logits, state = model(tokens[:, :7], return_state=True)
        said = [logits]
        for t in range(7, 12):
            step, state = model.step(tokens[:, t], state)
            said.append(step[:, None])
    torch.testing.assert_close(torch.cat(said, 1), whole, rtol=1e-9, atol=1e-9)
    assert counted(state) == 2 * cost(spec, vocab=TASK.vocab, length=12).state_floats


@of_the_zoo
def test_what_it_costs_is_known_without_building_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = codec.read_arch(name)
    with torch.device("meta"):
        built = sum(p.numel() for p in spec.build(vocab=77).parameters())
    monkeypatch.setattr(BackboneSpec, "build", None)
    assert cost(spec, vocab=77, length=16).parameters == built


def test_what_is_too_wide_to_build_has_its_price_or_is_refused() -> None:
    wide = {"name": "wide", "width": 2**20, "stack": [{"kind": "block", "mixer": "base_conv", "mlp": "swiglu"}]}
    assert cost(codec.read_arch(wide | {"width": 2**18}), vocab=10**6, length=10**9).parameters > 10**11
    for over, said in (
        ({"width": 100_000_000_000}, "width must be at least 1 and at most 1,048,576, got 100,000,000,000"),
        ({"width": 2**20}, "1.1e+13 parameters are more than can be trained"),
        (
            {"stack": [{"kind": "repeat", "times": 5000, "blocks": wide["stack"]}] * 3},
            "at most 10,000 blocks, got 15,000",
        ),
    ):
        with pytest.raises(SpecError, match=re.escape(said)):
            codec.read_arch(wide | over)


def test_heads_that_share_out_a_wide_model_are_told_those_near() -> None:
    """Of the many divisors of a width, and without trying every number up to it."""
    spec = {"name": "wide", "width": 720_720, "stack": [{"kind": "block", "mixer": {"kind": "mesa", "heads": 17}}]}
    with pytest.raises(SpecError, match="take one of 10, 11, 12, 13, 14, 15, 16, 18, 20, 21, 22, 24 heads"):
        codec.read_arch(spec)


def counted(state: object) -> int:
    leaves = pytree.tree_leaves(state)
    return sum(x.numel() for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point())


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("hawk_mesa", ["hawk", "mesa"]),
        ("gated_deltanet_h1", ["gated_deltanet", "attention"]),
        ("gated_deltanet_h2", ["mamba2", "gated_deltanet", "attention"]),
        ("samba", ["mamba1", "attention"]),
    ],
)
def test_a_hybrid_has_its_mixers_in_order_each_with_an_mlp(name: str, order: list[str]) -> None:
    blocks = list(flatten(codec.read_arch(name).stack))
    assert [block.mixer.kind for block in blocks] == order
    assert all(block.mlp is not None and block.mlp.kind == "swiglu" for block in blocks)


def test_mesanet_stands_in_its_own_backbone() -> None:
    mesa, mesanet = codec.read_arch("mesa"), codec.read_arch("mesanet")
    assert mesanet == replace(mesa, name="mesanet", init="mesanet")
    assert (mesanet.norm, mesanet.soft_cap, mesanet.tied) == ("rms", 30.0, True)
    assert largest_logit(mesanet) <= 30 < largest_logit(mesa)


def largest_logit(spec: BackboneSpec) -> float:
    """Of a model whose head answers a thousand times as loud."""
    model = spec.build(vocab=TASK.vocab)
    with torch.no_grad():
        (model.embedding if model.head is None else model.head).weight.mul_(1000)
        largest = model(torch.arange(8)[None]).abs().max()
    return float(largest)


def rows_of(first: str) -> list[str]:
    """The rows of the table in arch/README.md that begins so."""
    readme = (Path(__file__).parents[3] / "arch" / "README.md").read_text(encoding="utf-8")
    return readme[readme.index(first) :].partition("\n\n")[0].splitlines()


def test_the_readme_of_arch_says_of_every_architecture_what_differs() -> None:
    """`recallmap list differences --markdown`: its table is that, no row more or less."""
    table = rows_of("| arch | about |")
    assert table == CliRunner().invoke(app, ["list", "differences", "--markdown"]).output.splitlines()
    assert [row.split(" | ")[0].removeprefix("| ") for row in table[2:]] == ZOO
    assert all(row.removesuffix(" |").split(" | ")[-1] for row in table)


def test_the_list_of_mixers_says_what_differs_by_default() -> None:
    said = " ".join(CliRunner(env={"COLUMNS": "2000"}).invoke(app, ["list", "mixers"]).output.split())
    for phrase in (
        "GLA itself is gla_vector",
        "Mamba-2 itself is mamba2_shared_qk",
        "no residual from the first block's",
    ):
        assert phrase in said


@pytest.mark.parametrize(("what", "first"), [("mixers", "| mixer | equation |"), ("archs", "| arch | blocks |")])
def test_the_readme_of_arch_says_of_mixers_and_architectures_what_the_listing_says(what: str, first: str) -> None:
    """`recallmap list WHAT --markdown`: every row of the README is one of it. What is new need not be there yet."""
    result = CliRunner().invoke(app, ["list", what, "--markdown"])
    rows = rows_of(first)
    assert result.exit_code == 0
    assert len(rows) > 30
    assert set(rows) <= set(result.output.splitlines())
