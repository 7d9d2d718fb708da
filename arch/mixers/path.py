"""PaTH attention: softmax attention whose positions are reflections: every token reflects all earlier keys, for good.

k_j <- k_j (I - b_t w_t^T w_t) for all j < t, at every t
o_t = sum_j softmax_j(q_t . k_j / sqrt(K) + sum_{r=j+1..t} log f_r) v_j over j <= t

B batch, T time, D model width, H heads, K channels of a head
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from recallmap.arch import kernels
from recallmap.arch.kernels.path import PathState
from recallmap.arch.mixers.mixer import Memory, MixerModule, MixerSpec, State, StateSize
from recallmap.arch.parts.gates import SigmoidDecay, WriteStrength
from recallmap.arch.parts.heads import check_at_least, head_size
from recallmap.arch.parts.short_conv import ShortConv

SHARPEST = 1e4  # of the probe: scores that leave all weight to the best key
TAPS = 3  # of the convolution of w


@dataclass(frozen=True, kw_only=True)
class Path(MixerSpec):
    """PaTH attention, by default as its authors' layer in flash-linear-attention: b in (0, 2), and one w of length 1 a head,
    by a low rank, a convolution of three tokens and SiLU; no rotary positions. Their gate, an option here too, is divided by
    sqrt(K) in their code, as q . k is, and not here: so FoX has it, whose gate it is. Their option of a norm of queries and
    keys is not here.

    heads     number of heads side by side
    head_dim  channels of one head; None: width / heads
    rank      of the map that makes w
    forget    gates that forget, as in FoX, besides the reflections
    """

    kind: Literal["path"] = "path"
    heads: int = 8
    head_dim: int | None = None
    rank: int = 32
    forget: bool = False

    equation: ClassVar[str] = (
        "k_j <- k_j (I - b_t w_t^T w_t) for j < t at every t,  o_t = sum_j softmax_j(q_t . k_j / sqrt(K)) v_j"
    )
    state_formula: ClassVar[str] = "t H (2 K + 1 with forget) + 2 H K"
    source: ClassVar[str] = "Yang et al. 2025 (PaTH, arXiv:2505.16381)"

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, head_dim=self.head_dim, rank=self.rank)

    def differs(self) -> tuple[str, ...]:
        return ("the gate's sums are not divided by sqrt(K), as in their code they are",) if self.forget else ()

    def check(self, width: int) -> None:
        self.size(width)

    def size(self, width: int) -> int:
        """The number K of channels in a model of `width`."""
        return head_size(width, self.heads, self.head_dim, "head_dim")

    def build(self, width: int) -> MixerModule:
        return _Path(self, width)

    def parameters(self, width: int) -> int:
        channels = self.heads * self.size(width)
        gate = SigmoidDecay.count(width, self.heads) if self.forget else 0
        reflections = self.rank * (width + channels) + TAPS * channels
        return 4 * width * channels + reflections + WriteStrength.count(width, self.heads, bias=True) + gate

    def state_size(self, width: int, length: int) -> StateSize:
        channels = self.heads * self.size(width)
        a_token = 2 * channels + (self.heads if self.forget else 0)
        return StateSize((TAPS - 1) * channels, growing=a_token * length)

    def flops(self, width: int, length: int) -> float:
        channels, seen = self.heads * self.size(width), (length + 1) / 2
        matrices = 4 * width * channels + self.rank * (width + channels) + width * self.heads * (1 + self.forget)
        core = 8 * channels + (2 * self.heads if self.forget else 0)  # a key: read, reflected
        return 2 * (matrices + TAPS * channels) + core * seen

    def memory(self, width: int) -> Memory:
        """The memory without reflections, as sharp as queries can make it."""
        head_dim = self.size(width)

        def answer(q: Tensor, k: Tensor, v: Tensor, write: Tensor) -> Tensor:
            return kernels.path(q, k, v, w=k, beta=0 * write, scale=SHARPEST)[0]

        return Memory(self.heads, head_dim, head_dim, answer, {})


class _State(NamedTuple):
    conv: Tensor | None = None
    memory: PathState | None = None


class _Path(MixerModule):
    def __init__(self, spec: Path, width: int) -> None:
        super().__init__()
        self.heads, self.head_dim = spec.heads, spec.size(width)
        channels = self.heads * self.head_dim
        self.qkv = nn.Linear(width, 3 * channels, bias=False)
        self.down = nn.Linear(width, spec.rank, bias=False)
        self.up = nn.Linear(spec.rank, channels, bias=False)
        self.conv = ShortConv(channels, TAPS)
        self.strength = WriteStrength(width, self.heads, bias=True, most=2.0)
        self.decay = SigmoidDecay(width, self.heads, first=0.5) if spec.forget else None
        self.out = nn.Linear(channels, width, bias=False)

    def mix(self, x_BTD: Tensor, state: State, return_state: bool) -> tuple[Tensor, State]:
        state = state or _State()
        q_BTHK, k_BTHK, v_BTHK = self.qkv(x_BTD).unflatten(-1, (3, self.heads, -1)).unbind(2)
        w_BTC, conv = self.conv(self.up(self.down(x_BTD)), state.conv, activation="silu", unit=self.head_dim)
        o_BTHK, memory = kernels.path(
            q_BTHK,
            k_BTHK,
            v_BTHK,
            w=w_BTC.unflatten(-1, (self.heads, -1)),
            beta=self.strength(x_BTD),
            log_decay=None if self.decay is None else self.decay(x_BTD),
            initial_state=state.memory,
            return_state=return_state,
            implementation=self.implementation,
        )
        return self.out(o_BTHK.flatten(-2)), _State(conv, memory)
