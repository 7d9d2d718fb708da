"""The form in which a matrix is computed: in registers, from scratch memory, or by squares of its short side."""

from typing import Any, NamedTuple

FRESH = 3  # steps that A goes without being made anew
SCRATCH = 22 * 2**20  # floats of scratch memory for all programs


class Form(NamedTuple):
    """How one matrix is computed.

    precision  of products of fp32: "ieee"; "tf32x3", three tensor-core products that keep 21 bits
    warps      of a program
    tile       BM, BN, BK of a product from scratch memory
    block      BC, where only squares go through the steps; None of both: all in registers
    """

    precision: str
    warps: int
    tile: tuple[int, int, int] | None = None
    block: int | None = None

    def options(self) -> dict[str, Any]:
        """The constants of compilation."""
        tile = {} if self.tile is None else dict(zip(("BM", "BN", "BK"), self.tile, strict=True))
        block = {} if self.block is None else {"BC": self.block, "FRESH": FRESH}
        return {"PRECISION": self.precision, **tile, **block, "num_warps": self.warps, "num_stages": 1}


def form_for(rows: int, columns: int) -> Form:
    """The form for matrices of so many rows and columns, powers of two."""
    if rows <= 16 and columns >= 64:
        return Form("tf32x3", 1, block=64)
    if rows <= 32 and rows * columns <= 2048:
        return Form("tf32x3", rows * columns // 256)
    if rows <= 32:
        return Form("tf32x3", 4, block=32)
    return Form("tf32x3", 4, (32, min(rows, 64), 16))  # not 64 rows: Triton 3.6 gets those wrong on Hopper
