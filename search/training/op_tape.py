"""A tape of tensor operations on a CPU: what a function computes, recorded once and replayed into memory of its own.

A step of a small model is hundreds of operations of a few microseconds each. Replayed, they run without the model's Python, the
graph of derivatives, views and allocations. They are the same operations on tensors of the same form, so their results are
the same to the last bit. The function may branch on no data, and what outlasts it is written in place, as for a CUDA graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

ALIGNED = 64  # bytes, as torch's own memory

# Operations whose binding `torch.NAME(..., out=)` takes the same arguments. It costs a microsecond, the general one two.
BOUND = {
    *(
        "add.Tensor",
        "addmm.default",
        "bmm.default",
        "cat.default",
        "clamp.default",
        "div.Scalar",
        "div.Tensor",
        "exp.default",
    ),
    *("mean.dim", "mm.default", "mul.Scalar", "mul.Tensor", "neg.default", "pow.Tensor_Scalar", "rsqrt.default"),
    *("stack.default", "sub.Tensor", "sum.dim_IntList", "where.self"),
}

COPIES = {"clone.default", "_to_copy.default"}

UNREPEATABLE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)


class NotRecordable(Exception):
    """A function that cannot be replayed; the message says for which operation."""


class Call(NamedTuple):
    """A function and its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class _Place:
    """A tensor as a place in a storage, which has a number."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _Operation(NamedTuple):
    """An operation, with places for tensors. `made`: the storages that it makes."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    reads: frozenset[int]
    writes: frozenset[int]
    made: frozenset[int]

    @property
    def name(self) -> str:
        return str(self.op).removeprefix("aten.")


class Tape(TorchDispatchMode):
    """Records the operations that run in its context, without keeping their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self.bytes: list[int] = []  # of every storage
        self.outside: dict[int, torch.UntypedStorage] = {}  # those that no operation made
        self.constant: dict[int, torch.UntypedStorage] = {}  # those that depend on none from outside
        self._numbers: dict[int, int] = {}
        self._known: list[StorageWeakRef] = []  # no other storage gets the address of a known one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nobody compiles what is recorded, and else PyTorch imports its compiler, which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, named = _mapped(Tensor, self.place_of, (args, kwargs))
        result = func(*args, **kwargs)
        reads, written = _read(func, (given, named)), frozenset(_written(func, given, named))
        if not _repeatable(func, args):
            raise NotRecordable(f"{func} depends on data or on chance")
        if any(not isinstance(leaf, Tensor | None) for leaf in _leaves(result)):
            if reads:
                raise NotRecordable(f"{func} gives what is no tensor")
            return result
        first = len(self.bytes)
        results = _mapped(Tensor, lambda tensor: self._place(tensor, {}), result)
        made = frozenset(number for number in _storages(results) if number >= first)
        if made and not _storages(results) <= made:
            raise NotRecordable(f"{func} gives views beside new tensors")
        if made and reads <= self.constant.keys() and not written:
            self.constant |= {self.place_of(leaf).storage: leaf.untyped_storage() for leaf in _leaves(result)}
        self.operations.append(_Operation(func, given, named, results, reads, written, made))
        return result

    def place_of(self, tensor: Tensor) -> _Place:
        """The place of a tensor; one that no operation made is from outside."""
        return self._place(tensor, self.outside)

    def _place(self, tensor: Tensor, kept: dict[int, torch.UntypedStorage]) -> _Place:
        """Its place; a storage that is not known yet is put into `kept`."""
        storage = tensor.untyped_storage()
        number = self._numbers.setdefault(storage._cdata, len(self.bytes))
        if number == len(self.bytes):
            self.bytes.append(storage.nbytes())
            self._known.append(StorageWeakRef(storage))
            kept[number] = storage
        return _Place(number, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


class Replay:
    """The operations of a tape that its results and the storages from outside depend on, in memory of their own.

    bytes  of that memory
    """

    def __init__(self, tape: Tape, result: _Place) -> None:
        written = {number for one in tape.operations for number in one.writes}
        constant = {number: storage for number, storage in tape.constant.items() if number not in written}
        self._kept, self._sizes = tape.outside | constant, tape.bytes
        needed = list(_needed(tape, constant.keys(), result))
        self._in_zeros = {number for one in needed if _is_inside(one) for number in one.made - written}
        self._offsets, self.bytes = self._planned(needed, result.storage)
        self._memory = torch.zeros(self.bytes, dtype=torch.uint8).untyped_storage()
        with torch.inference_mode():
            self.calls = [call for one in needed if (call := self._call(one)) is not None]
            self.result = self._tensor(result)

    @torch.inference_mode()
    def __call__(self) -> Tensor:
        """Run them; the result, which the next run overwrites."""
        for function, args, kwargs in self.calls:
            function(*args, **kwargs)
        return self.result

    def _planned(self, needed: Sequence[_Operation], result: int) -> tuple[dict[int, int], int]:
        """Where each storage of ours begins, and the bytes of all. Storages share memory where one is done with before the
        next begins: what was used last is still in the cache."""
        last = {number: index for index, one in enumerate(needed) for number in one.reads | one.writes | one.made}
        ending = defaultdict(list)
        for number, index in last.items():
            if number != result and number not in self._in_zeros:
                ending[index].append(number)
        offsets: dict[int, int] = {}
        free: dict[int, list[int]] = defaultdict(list)
        total = 0
        for index, one in enumerate(needed):
            for number in sorted(one.made):
                size = self._aligned(number)
                if free[size] and number not in self._in_zeros:
                    offsets[number] = free[size].pop()
                else:
                    offsets[number] = total
                    total += size
            for number in ending[index]:
                if number in offsets:
                    free[self._aligned(number)].append(offsets[number])
        return offsets, total

    def _aligned(self, number: int) -> int:
        """The bytes of a storage, as many as end where another may begin."""
        return -(-self._sizes[number] // ALIGNED) * ALIGNED

    def _tensor(self, place: _Place) -> Tensor:
        """The tensor at a place."""
        if place.storage in self._offsets:
            storage, offset = self._memory, self._offsets[place.storage] // place.dtype.itemsize + place.offset
        else:
            storage, offset = self._kept[place.storage], place.offset
        return torch.empty(0, dtype=place.dtype).set_(storage, offset, place.size, place.stride)

    def _call(self, one: _Operation) -> Call | None:
        """The call that writes the operation's results where they belong."""
        args, kwargs = _mapped(_Place, self._tensor, (one.args, one.kwargs))
        if not one.made:
            return Call(one.op._op, args, kwargs)
        results = _mapped(_Place, self._tensor, one.results)
        if one.name.startswith(("empty", "new_empty")):
            return None
        if one.name.startswith(("zeros", "new_zeros")):
            return Call(Tensor.zero_, (results,), {})
        if one.name in COPIES:
            return Call(Tensor.copy_, (results, args[0]), {})
        if one.made <= self._in_zeros:
            return Call(Tensor.copy_, (_INSIDE[one.name](results, *args), args[0]), {})
        if one.name in BOUND:
            return Call(getattr(torch, one.name.partition(".")[0]), args, {**kwargs, "out": results})
        given = results if isinstance(results, tuple | list) else [results]
        variant = _out_variant(one.op)
        if variant is None or any(place is None for place in given):
            return Call(_copied, (one.op._op, given, args, kwargs), {})
        op, names = variant
        return Call(op._op, args, {**kwargs, **dict(zip(names, given, strict=True))})


def _needed(tape: Tape, constant: Set[int], result: _Place) -> Iterator[_Operation]:
    """The operations that must run, in order: neither views nor constants, nor those whose results nothing reads."""
    live, found = {result.storage, *tape.outside}, []
    for one in reversed(tape.operations):
        given = one.made | one.writes
        if given.isdisjoint(live) or (one.made and one.made <= constant):
            continue
        live |= one.reads
        found.append(one)
    return reversed(found)


def _repeatable(op: OpOverload, args: Sequence[Any]) -> bool:
    """Whether the shapes of its results depend on no data, and its values on no chance. Those of an index do where it is a
    mask."""
    if op is torch.ops.aten.index.Tensor:
        return not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not any(tag in op.tags for tag in UNREPEATABLE)


def _read(op: OpOverload, places: Any) -> frozenset[int]:
    """The storages on whose values an operation depends; on those of `like` it does not."""
    formed = op.overloadpacket.__name__.endswith("_like") or op.overloadpacket.__name__.startswith("new_")
    return frozenset() if formed else _storages(places)


def _storages(places: Any) -> frozenset[int]:
    return frozenset(leaf.storage for leaf in _leaves(places) if isinstance(leaf, _Place))


def _mapped(kind: type, function: Callable[[Any], Any], value: Any) -> Any:
    """The value with `function` of all that is of this kind, in lists, tuples and mappings, too."""
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(kind, function, one) for one in value])
    if isinstance(value, dict):
        return {name: _mapped(kind, function, one) for name, one in value.items()}
    return value


def _leaves(value: Any) -> Iterator[Any]:
    """All in lists, tuples and mappings."""
    if isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    else:
        yield value


def _written(op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[int]:
    """The storages that an operation writes, but for those that it makes."""
    for number, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _storages(args[number] if number < len(args) else kwargs.get(argument.name))


@cache
def _out_variant(op: OpOverload) -> tuple[OpOverload, list[str]] | None:
    """The same operation into tensors that are given, and their names; None where there is none."""
    wanted = [(argument.name, str(argument.type)) for argument in op._schema.arguments]
    for name in op.overloadpacket.overloads():
        variant = getattr(op.overloadpacket, name)
        arguments = variant._schema.arguments
        names = [argument.name for argument in arguments if argument.is_out]
        taken = [(argument.name, str(argument.type)) for argument in arguments if not argument.is_out]
        if len(names) == len(op._schema.returns) and taken == wanted:
            return variant, names
    return None


def _copied(op: Callable[..., Any], given: Sequence[Tensor | None], args: Any, kwargs: Any) -> None:
    """Run an operation that makes its results, and copy them."""
    found = op(*args, **kwargs)
    for place, value in zip(given, found if isinstance(found, tuple | list) else [found], strict=True):
        if place is not None:
            place.copy_(value)


# Operations that put a tensor into zeros: the place in their result. Nothing else is ever written there.


def _slice(whole: Tensor, _: Tensor, size: Any, dim: int, start: int, end: int, step: int) -> Tensor:
    return whole[(slice(None),) * (dim % whole.dim()) + (slice(start, min(end, size[dim]), step),)]


def _select(whole: Tensor, _: Tensor, size: Any, dim: int, index: int) -> Tensor:
    return whole.select(dim, index)


def _pad(whole: Tensor, part: Tensor, pads: Sequence[int], value: float = 0) -> Tensor:
    """Pads stand for the last dimension first."""
    for number, before in enumerate(pads[::2]):
        dim = -1 - number
        whole = whole.narrow(dim, before, part.shape[dim])
    return whole


_INSIDE: dict[str, Callable[..., Tensor]] = {
    "slice_backward.default": _slice,
    "select_backward.default": _select,
    "constant_pad_nd.default": _pad,
}


def _is_inside(one: _Operation) -> bool:
    if one.name == "constant_pad_nd.default":
        _, pads, *value = one.args
        return min(pads) >= 0 and not any(value)
    return one.name in _INSIDE
