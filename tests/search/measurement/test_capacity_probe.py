"""The capacity probe as a specification: what theory says a memory holds is what is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from recallmap.arch import kernels
from recallmap.arch.backbone import BackboneSpec
from recallmap.arch.block import Block
from recallmap.arch.kernels.monomials import count_monomials, monomials
from recallmap.arch.mixers import (
    HGRN2,
    Attention,
    BaseConv,
    DeltaNet,
    GatedLinearAttention,
    Mamba2,
    Mesa,
    Mixer,
    RetNet,
)
from recallmap.arch.mixers.memory import OmegaNet
from recallmap.arch.mixers.mixer import Memory, MixerSpec
from recallmap.search.cli.app import app
from recallmap.search.measurement.capacity_probe import Keys, draw_keys, measure, probe

WIDTH, HEADS, KEY = 32, 4, 8  # so that K = V = 8
EXACT = 1e-6


def memory_of(spec: MixerSpec) -> Memory:
    memory = spec.memory(WIDTH)
    assert memory is not None
    return memory


def error(
    spec: MixerSpec | Memory, pairs: int, keys: Keys = "gaussian", *, passes: int = 1, unit: bool = True
) -> float:
    memory = memory_of(spec) if isinstance(spec, MixerSpec) else spec
    return float(measure(memory, [pairs], keys=keys, passes=passes, unit=unit)[0])


def test_a_delta_rule_holds_as_many_orthonormal_pairs_as_a_key_has_channels() -> None:
    assert max(error(DeltaNet(heads=HEADS), n, "orthonormal") for n in (1, KEY // 2, KEY)) < EXACT
    assert error(DeltaNet(heads=HEADS), KEY + 1, "orthonormal") > 0.1


def test_a_delta_rule_solves_for_gaussian_keys_by_passing_over_them_again() -> None:
    once, often = (error(DeltaNet(heads=HEADS), KEY // 2, passes=passes) for passes in (1, 400))
    assert often < EXACT < 0.1 < once


@pytest.mark.parametrize("keys", ["gaussian", "orthonormal", "correlated", "quantised"])
def test_mesa_holds_as_many_independent_pairs_as_a_key_has_channels_in_one_pass(keys: Keys) -> None:
    assert error(Mesa(heads=HEADS), KEY // 2, keys) < EXACT
    assert error(Mesa(heads=HEADS), 2 * KEY, keys) > 0.3


def test_mesa_is_exact_up_to_the_last_channel() -> None:
    assert error(Mesa(heads=HEADS), KEY, "orthonormal") < EXACT
    assert error(Mesa(heads=HEADS), KEY, "gaussian") < 1e-3  # a square Gaussian matrix is nearly singular
    assert error(Mesa(heads=HEADS), KEY + 1, "gaussian") > 0.1


@pytest.mark.parametrize(
    "spec", [GatedLinearAttention(heads=HEADS), Mamba2(heads=HEADS), Mamba2(heads=HEADS, form="shared_qk")]
)
def test_a_sum_of_outer_products_is_exact_for_orthonormal_keys_alone(spec: MixerSpec) -> None:
    assert error(spec, KEY, "orthonormal") < EXACT
    assert min(error(spec, n, "gaussian") for n in (2, KEY)) > 0.1


def test_what_fades_at_every_pair_answers_the_last_one_best() -> None:
    memory = memory_of(RetNet(heads=HEADS, value_dim=KEY))
    rng = torch.Generator().manual_seed(0)
    k = draw_keys("orthonormal", 1, KEY, HEADS, KEY, rng)
    v = torch.randn(1, KEY, HEADS, KEY, dtype=torch.float64, generator=rng)
    silent, write = torch.zeros_like(k), torch.ones(1, 2 * KEY, HEADS, dtype=torch.float64)
    write[:, KEY:] = 0
    o = memory.answer(torch.cat([silent, k], 1), torch.cat([k, silent], 1), torch.cat([v, silent], 1), write)
    kept_NH = (o[0, KEY:] * v[0]).sum(-1) / v[0].square().sum(-1)
    age_N = torch.arange(KEY - 1, -1, -1, dtype=torch.float64)
    decay_H = 1 - 2.0 ** (-5 - torch.arange(HEADS, dtype=torch.float64))
    torch.testing.assert_close(kept_NH, decay_H ** age_N[:, None])


def test_a_memory_that_lets_go_by_its_own_keys_loses_what_shares_a_channel_with_a_later_key() -> None:
    assert error(HGRN2(heads=HEADS), 1) < 1
    assert error(HGRN2(heads=HEADS), KEY, "gaussian") > error(GatedLinearAttention(heads=HEADS), KEY, "orthonormal")
    with_all_of_it = draw_keys("quantised", 1, 1, 1, 1, torch.Generator().manual_seed(0))
    alone = memory_of(HGRN2(heads=1, key_dim=1))
    v, write = torch.randn(1, 1, 1, WIDTH).double(), torch.ones(1, 1, 1, dtype=torch.float64)
    torch.testing.assert_close(alone.answer(with_all_of_it, with_all_of_it, v, write), v)


@pytest.mark.parametrize(("key_dim", "degree"), [(3, 2), (3, 3), (2, 4)])
def test_polynomials_of_a_degree_hold_one_pair_a_monomial(key_dim: int, degree: int) -> None:
    most = count_monomials(key_dim, degree)
    solved = of_polynomials(key_dim, degree)
    assert error(solved, most - 1, unit=False) < 1e-4
    assert error(solved, most + 2, unit=False) > 0.05


def test_on_the_sphere_polynomials_hold_less() -> None:
    degree, key_dim = 2, 3
    least = count_monomials(key_dim, degree) - 1  # |k|^2 = 1 is one relation between monomials of degree 2
    solved = of_polynomials(key_dim, degree)
    assert error(solved, least - 1) < 1e-4
    assert error(solved, least + 1) > 0.02


def of_polynomials(key_dim: int, degree: int) -> Memory:
    """Mesa over all monomials up to a degree."""
    roots = torch.ones(degree + 1, dtype=torch.float64)
    features = count_monomials(key_dim, degree)

    def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
        q, k = (monomials(x, roots)[0] for x in (q, k))
        lam = torch.full((HEADS, features), 1e-12, dtype=torch.float64)
        return kernels.mesa(q, k, v, beta=write, lam=lam, steps=6 * features)[0]

    return Memory(HEADS, key_dim, 8, answer, {"C(d_k + p, p)": features})


@pytest.mark.parametrize("keys", get_args(Keys))
def test_attention_is_always_exact(keys: Keys) -> None:
    wide = memory_of(Attention(heads=1))  # 32 channels: no two of the quantised keys are alike
    error_P, recall_P = measure(wide, [1, 32, 200], keys=keys)
    assert error_P.max() < EXACT
    assert recall_P.tolist() == [1, 1, 1]


def test_a_window_holds_its_tokens_less_the_one_that_asks() -> None:
    spec = Attention(heads=HEADS, window=9)
    assert error(spec, 8) < EXACT
    assert measure(memory_of(spec), [16])[1] == pytest.approx(8 / 16, abs=0.1)


@pytest.mark.parametrize("spec", [spec() for spec in get_args(Mixer)], ids=lambda spec: spec.kind)
def test_to_read_a_memory_leaves_it_as_it_is(spec: MixerSpec) -> None:
    memory = spec.memory(64)
    if memory is None:
        pytest.skip("no memory of pairs")
    rng = torch.Generator().manual_seed(0)
    k = draw_keys("gaussian", 1, 5, memory.heads, memory.key_dim, rng)
    v = torch.randn(1, 5, memory.heads, memory.value_dim, dtype=torch.float64, generator=rng)
    blank = [torch.zeros_like(x).repeat(1, 2, 1, 1) for x in (k, v)]
    write = torch.tensor([1.0] * 5 + [0.0] * 10, dtype=torch.float64)[None, :, None].expand(1, -1, memory.heads)
    inputs = (torch.cat([k, k, k], 1), torch.cat([k, blank[0]], 1), torch.cat([v, blank[1]], 1), write)
    with torch.no_grad():
        o = memory.answer(*inputs)
    torch.testing.assert_close(o[:, 5:10], o[:, 10:], rtol=1e-9, atol=1e-9)
    assert o[:, 5:10].abs().max() > 0


def test_all_numbers_of_pairs_are_one_call() -> None:
    calls = []
    memory = memory_of(DeltaNet(heads=HEADS))

    def counted(*inputs: Tensor) -> Tensor:
        calls.append(inputs[0].shape)
        return memory.answer(*inputs)

    measure(memory._replace(answer=counted), [2, 5, 7], draws=3)
    assert calls == [(9, 14, HEADS, KEY)]


@pytest.mark.parametrize(
    ("keys", "cosine"), [("gaussian", 0), ("orthonormal", 0), ("correlated", 0.5), ("quantised", 0)]
)
def test_keys_are_of_length_one_and_lie_to_each_other_as_asked(keys: Keys, cosine: float) -> None:
    k = draw_keys(keys, 20, 16, 2, 16, torch.Generator().manual_seed(0))
    assert k.norm(dim=-1) == pytest.approx(1)
    gram = torch.einsum("bnhk,bmhk->bhnm", k, k)
    between = gram[..., ~torch.eye(16, dtype=torch.bool)]
    assert between.mean() == pytest.approx(cosine, abs=0.03)
    assert (between.abs().max() < 1e-12) == (keys == "orthonormal")


def tiny(*mixers: Mixer) -> BackboneSpec:
    return BackboneSpec(name="tiny", width=WIDTH, stack=tuple(Block(mixer=mixer) for mixer in mixers))


def test_every_mixer_of_an_architecture_is_measured_once_and_against_its_own_state() -> None:
    spec = tiny(BaseConv(), DeltaNet(heads=HEADS), Attention(heads=HEADS), DeltaNet(heads=HEADS))
    rows = probe(spec, pairs=[8, 4])
    assert [(row["mixer"], row["pairs"]) for row in rows] == [(m, n) for m in ("deltanet", "attention") for n in (4, 8)]
    assert [row["state_floats"] for row in rows] == [HEADS * KEY * KEY] * 2 + [2 * 4 * WIDTH, 2 * 8 * WIDTH]
    assert rows[1]["load"] == pytest.approx(8 / (KEY * KEY))
    assert rows == probe(spec, pairs=[8, 4])
    assert rows != probe(spec, pairs=[8, 4], seed=1)


def test_pairs_are_tried_around_the_bounds() -> None:
    pairs = [row["pairs"] for row in probe(tiny(DeltaNet(heads=HEADS)))]
    assert (min(pairs), max(pairs)) == (KEY // 4, 4 * KEY)
    assert KEY in pairs


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="tiny has only base_conv, expected a mixer with a memory of key-value pairs"):
        probe(tiny(BaseConv()))
    with pytest.raises(ValueError, match="at least 1"):
        probe(tiny(DeltaNet(heads=HEADS)), passes=0)


def test_a_delta_rule_over_polynomials_holds_more_than_a_key_has_channels() -> None:
    linear = DeltaNet(heads=HEADS, key_dim=4)
    square = OmegaNet(heads=HEADS, key_dim=4, depth=1, window=1, chunk=1, residual=False)  # degree 2: 14 on the sphere
    assert error(square, 7, passes=200) < 1e-3
    assert error(linear, 7, passes=200) > 0.3


def test_the_verb_prints_the_curve_and_writes_a_page_and_rows(tmp_path: Path) -> None:
    words = ["probe", "deltanet", "--pairs", "16", "--pairs", "24", "--keys", "orthonormal", "-o"]
    printed = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, str(tmp_path / "c.html")])
    assert printed.exit_code == 0, printed.output
    assert "d_k = 16" in printed.output
    text = (tmp_path / "c.html").read_text(encoding="utf-8")
    assert text.count("<polyline") == 3
    assert "<script" not in text
    assert CliRunner().invoke(app, [*words, str(tmp_path / "c.json")]).exit_code == 0
    rows = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert [(row["pairs"], row["error"] < EXACT) for row in rows] == [(16, True), (24, False)]
    refused = CliRunner().invoke(app, ["probe", "base_conv"])
    assert (refused.exit_code, "expected a mixer with a memory" in refused.output) == (2, True)
    assert CliRunner().invoke(app, [*words, "c.txt"]).exit_code == 2
