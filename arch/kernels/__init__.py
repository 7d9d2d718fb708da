"""The ops that mixers compute along time, each with one signature and several implementations.

Every op `f` takes [B, T, heads, width] and gives outputs and, with `return_state`, the state behind the last token;
`f_step` takes one token, the same shapes without T. `select.implementations(op)` lists how an op can be computed.
"""

from recallmap.arch.kernels.add_norm import add_norm, add_norm_step
from recallmap.arch.kernels.attention import AttentionState, attention, attention_step
from recallmap.arch.kernels.delta import delta, delta_step
from recallmap.arch.kernels.gated_linear import gated_linear, gated_linear_step
from recallmap.arch.kernels.gated_scan import gated_scan, gated_scan_step
from recallmap.arch.kernels.kernel_attention import kernel_attention, kernel_attention_read, kernel_attention_step
from recallmap.arch.kernels.kernel_delta import kernel_delta, kernel_delta_read, kernel_delta_step
from recallmap.arch.kernels.linear_scan import linear_scan, linear_scan_step
from recallmap.arch.kernels.log_linear import LogLinearState, log_linear, log_linear_step
from recallmap.arch.kernels.memory import MemoryState, memory, memory_read, memory_step
from recallmap.arch.kernels.mesa import MesaState, mesa, mesa_step, mesa_steps_taken
from recallmap.arch.kernels.mesa_rls import MesaRlsState, mesa_rls, mesa_rls_step
from recallmap.arch.kernels.mlstm import MlstmState, mlstm, mlstm_step
from recallmap.arch.kernels.monomials import monomials, monomials_step
from recallmap.arch.kernels.newton_schulz import newton_schulz, newton_schulz_step
from recallmap.arch.kernels.norm_gate import norm_gate, norm_gate_step
from recallmap.arch.kernels.path import PathState, path, path_step
from recallmap.arch.kernels.retained import retained, retained_step
from recallmap.arch.kernels.rotary import rotary, rotary_step
from recallmap.arch.kernels.selective_scan import selective_scan, selective_scan_step
from recallmap.arch.kernels.short_conv import short_conv, short_conv_step
from recallmap.arch.kernels.slots import SlotsState, slots, slots_step
from recallmap.arch.kernels.spanned import spanned, spanned_step
from recallmap.arch.kernels.spanned_newton_schulz import spanned_newton_schulz, spanned_newton_schulz_step
from recallmap.arch.kernels.spanned_sum import spanned_sum, spanned_sum_step
from recallmap.arch.kernels.swiglu import swiglu, swiglu_step

__all__ = [
    "AttentionState",
    "LogLinearState",
    "MemoryState",
    "MesaRlsState",
    "MesaState",
    "MlstmState",
    "PathState",
    "SlotsState",
    "add_norm",
    "add_norm_step",
    "attention",
    "attention_step",
    "delta",
    "delta_step",
    "gated_linear",
    "gated_linear_step",
    "gated_scan",
    "gated_scan_step",
    "kernel_attention",
    "kernel_attention_read",
    "kernel_attention_step",
    "kernel_delta",
    "kernel_delta_read",
    "kernel_delta_step",
    "linear_scan",
    "linear_scan_step",
    "log_linear",
    "log_linear_step",
    "memory",
    "memory_read",
    "memory_step",
    "mesa",
    "mesa_rls",
    "mesa_rls_step",
    "mesa_step",
    "mesa_steps_taken",
    "mlstm",
    "mlstm_step",
    "monomials",
    "monomials_step",
    "newton_schulz",
    "newton_schulz_step",
    "norm_gate",
    "norm_gate_step",
    "path",
    "path_step",
    "retained",
    "retained_step",
    "rotary",
    "rotary_step",
    "selective_scan",
    "selective_scan_step",
    "short_conv",
    "short_conv_step",
    "slots",
    "slots_step",
    "spanned",
    "spanned_newton_schulz",
    "spanned_newton_schulz_step",
    "spanned_step",
    "spanned_sum",
    "spanned_sum_step",
    "swiglu",
    "swiglu_step",
]
