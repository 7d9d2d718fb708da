"""Machine code for Hopper reads no register that nothing has written.

ptxas 12.8, which Triton 3.6 and 3.7 bring, loses the address of an operand in shared memory in some kernels with Hopper's wider
products. They then read what lies elsewhere, or out of bounds, and only on some widths or without gradients. It shows without
a GPU: kernels are compiled, and their machine code is read.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from recallmap.arch.kernels import select
from recallmap.arch.kernels.benchmark import timing

# In a process of its own: it compiles, and this one interprets. It leaves the binary of each kernel with a wider product.
COMPILED = """
import sys
from functools import partial
from pathlib import Path
import torch
from triton.runtime.jit import JITFunction
from recallmap.arch.kernels.ahead import Target, compiling_for
from recallmap.arch.kernels.benchmark import timing

folder, op, variant, width = sys.argv[1:]
run = JITFunction.run
def seen(self, *args, **kwargs):
    kernel = run(self, *args, **kwargs)
    if "wgmma" in kernel.asm["ptx"]:
        (Path(folder) / f"{kernel.metadata.name}-{kernel.hash[:8]}.cubin").write_bytes(kernel.asm["cubin"])
    return kernel
JITFunction.run = seen
with compiling_for(Target("cuda", 90, 32)):
    for batch, heads, time in ((4, 8, 512), (1, 2, 300)):
        shape = timing.Shape(batch=batch, time=time, heads=heads, key_width=int(width), value_width=int(width))
        inputs = timing._on(timing.example(op, variant, shape), torch.bfloat16, torch.device("cpu"))
        try:
            for call in timing._calls(partial(timing._run, op, "fused"), inputs):
                call()
        except ValueError as error:
            if "implementation 'fused'" not in str(error):
                raise
            print("refused:", error)
"""
REGISTER = re.compile(r"(gdesc|desc)?\[?\bUR(\d+)\b(\.64)?")


class Instruction(NamedTuple):
    """What a line of machine code does to uniform registers, which are known by their numbers."""

    address: int
    text: str
    name: str
    read: frozenset[int]
    written: frozenset[int]


def instruction(address: int, text: str) -> Instruction:
    """A product's `gdesc[UR8]` is of four registers: two for each operand in shared memory, the first of which may instead be
    in ordinary registers."""
    name, _, rest = re.sub(r"^@!?U?P\w+\s+", "", text).partition(" ")
    operands = [operand.strip() for operand in re.sub(r"^UP\d, ", "", rest).split(",")]
    to = re.fullmatch(r"UR(\d+)", operands[0]) if name.startswith(("U", "R2UR", "S2UR", "REDUX", "VOTEU")) else None
    operands = operands[1:] if to else operands
    doubles = to and ".64" in name and not name.startswith("ULDC")
    read: set[int] = set()
    for described, first, wide in REGISTER.findall(", ".join(operands)):
        start, count = int(first), 2 if wide or doubles or described == "desc" else 1
        if described == "gdesc":
            start, count = (start + 2, 2) if re.fullmatch(r"R\d+", operands[1]) else (start, 4)
        read.update(range(start, start + count))
    count = 4 if ".128" in name else 2 if ".64" in name or ".WIDE" in name else 1
    written = range(int(to[1]), int(to[1]) + count) if to else ()
    return Instruction(address, text, name, frozenset(read), frozenset(written))


def unwritten(code: str) -> list[str]:
    """Instructions, as cuobjdump prints them, that read a uniform register which nothing writes before, line by line. A
    subroutine stands behind the code that calls it. To move such a register is no fault yet: where a product needs no more than
    half of four, all four are moved."""
    lines = re.findall(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", code, re.MULTILINE)
    instructions = [instruction(int(address, 16), text) for address, text in lines]
    known: set[int] = set()
    found = []
    for each in instructions:
        lacking = each.read - known
        if lacking and each.name != "UMOV":
            found.append(each.text)
        known = known - each.written if lacking and each.name == "UMOV" else known | each.written
        if each.name.startswith("CALL"):
            target = int(each.text.split()[-1], 16)
            known.update(*(other.written for other in instructions if other.address >= target))
    return found


def numbered(*instructions: str) -> str:
    return "\n".join(f"        /*{16 * at:04x}*/   {each} ;   /* 0x0 */" for at, each in enumerate(instructions))


def test_a_lost_address_is_found() -> None:
    """UR18 was to be a copy of UR12."""
    lost = ("UIADD3 UR18, UP0, UR18, 0x40, URZ", "UIADD3.X UR19, UR19, -0x7fffffe0, URZ, UP0, !UPT")
    assert unwritten(numbered("USGXT.U32 UR12, UR8, 0xe", *lost)) == ["USGXT.U32 UR12, UR8, 0xe", *lost]
    assert unwritten(numbered("UMOV UR12, 0x4", "UMOV UR18, UR12", "UMOV UR19, URZ", *lost)) == []
    assert unwritten(numbered("UMOV UR18, UR12", "UMOV UR19, URZ", *lost)) == [lost[0]]


def test_a_subroutine_leaves_what_it_writes() -> None:
    called = ("CALL.REL.NOINC 0x30", "MOV R4, UR9", "EXIT", "ULDC.64 UR8, c[0x0][0x208]", "RET.REL.NODEC R2 0x0")
    assert unwritten(numbered(*called)) == []
    assert unwritten(numbered(*called[1:])) == [called[1]]


@pytest.mark.parametrize(
    ("product", "registers"),
    [
        ("HGMMA.64x32x16.F32.BF16 R24, gdesc[UR16].tnspB, R24", (16, 17, 18, 19)),
        ("HGMMA.64x64x16.F32.BF16 R24, R56, gdesc[UR16].tnspB, R24, gsb0", (18, 19)),
        ("LDG.E R4, desc[UR16][R8.64+0x400]", (16, 17)),
        ("UIADD3.64 UR36, UR16, 0x2, URZ", (16, 17)),
        ("ISETP.GE.AND P1, PT, R111, UR16, PT", (16,)),
    ],
)
def test_what_an_instruction_takes(product: str, registers: tuple[int, ...]) -> None:
    assert unwritten(numbered(*(f"UMOV UR{each}, 0x4" for each in registers), product)) == []
    for lacking in registers:
        there = [f"UMOV UR{each}, 0x4" for each in registers if each != lacking]
        assert unwritten(numbered(*there, product)) == [product]


def test_what_an_instruction_writes() -> None:
    assert unwritten(numbered("ULDC.64 UR4, c[0x0][0x208]", "@P1 R2UR UR6, R2", "UMOV UR7, UR5")) == []
    assert unwritten(numbered("ULDC UR4, c[0x0][0x208]", "UMOV UR7, UR5", "MOV R4, UR7")) == ["MOV R4, UR7"]
    assert (
        unwritten(numbered("UMOV UR9, 0x4", "ULOP3.LUT UP0, UR21, UR9, 0xfffe, URZ, 0xc0, !UPT", "UMOV UR7, UR21"))
        == []
    )


def kernels() -> Iterator[object]:
    """Of every op, with wide heads; of widths that are no multiple of 16, too, whose rows are loaded otherwise."""
    for op in select.ops():
        for variant in timing.variants(op) if "fused" in select.implementations(op) else ():
            for width in (128, 100, 64):
                quick = (op, variant, width) == ("delta", "head", 100)
                yield pytest.param(op, variant, width, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize(("op", "variant", "width"), [*kernels()])
def test_no_kernel_reads_what_nothing_wrote(
    op: str, variant: str, width: int, tmp_path: Path, uninterpreted: Callable[..., str]
) -> None:
    triton = pytest.importorskip("triton")
    told = uninterpreted(COMPILED, str(tmp_path), op, variant, str(width))
    if told.startswith("refused:"):
        pytest.skip(told.splitlines()[0])
    dump = Path(triton.__path__[0], "backends", "nvidia", "bin", "cuobjdump")
    binaries = sorted(tmp_path.glob("*.cubin"))
    assert binaries or (op, variant) != ("delta", "head")
    if not binaries:
        pytest.skip("no kernel has wider products")
    for binary in binaries:
        code = subprocess.run([dump, "-sass", binary], capture_output=True, text=True, check=True).stdout
        assert "EXIT" in code
        assert unwritten(code) == [], binary.name
