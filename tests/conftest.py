"""Before anything is imported: where there is no GPU, Triton's kernels are interpreted, and signals are heard.

A shell without a terminal starts jobs deaf to SIGINT, `nohup` to SIGHUP, and all their children are: tests of who ends a run
would wait for ever.
"""

import functools
import inspect
import math
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer import testing

from recallmap.results import ledger


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Guides and wheel, which start processes of their own, go first: the last test of a run keeps one core only."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


def hurry_the_interpreter() -> None:
    """What Triton's interpreter does over and over, to no effect, takes most of its time. It exchanges its whole language
    each time that a kernel calls a function, where once a kernel is enough. It builds a table of types for each number, and a
    type with its shape for each block. It asks each operation twice whether it is one. It compares each whole number with the
    largest one, and throws the answer away, since no kernel is debugged. Ahead of an operation on two it converts what has one
    type, makes a number a tensor twice, and fills blocks with what numpy broadcasts by itself; here operands have the type of
    the whole, and the data that they had."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    function: Any = interpreter.InterpretedFunction
    block_type: Any = tl.core.block_type
    tensor: Any = tl.core.tensor
    call, make_type = function.__call__, block_type.__init__
    numpy_type, unwrap = interpreter._get_np_dtype, tl.core._unwrap_if_constexpr
    convert, broadcast = TritonSemantic.binary_op_type_checking_impl, TritonSemantic.broadcast_impl_value
    numpy_types: dict[str, Any] = {}
    types: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, tuple[Any, Any]] = {}
    languages: dict[Any, list[Any]] = {}
    wholes: dict[tuple[Any, Any], Any] = {}
    short, long = (range(x.get_int_min_value(), x.get_int_max_value() + 1) for x in (tl.int32, tl.int64))
    # Whole numbers that take the type of a tensor beside them; types that two of one keep, but for quotients in 16 bits.
    numbers = {"int32": short, "int64": long, "fp32": long, "fp64": long}
    kept = {*numbers, "int1", "fp16", "bf16"}
    unwrapped = {tensor, block_type, tl.core.dtype, int, float, bool, str, type(None)}

    def call_within_a_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn not in languages:
            languages[self.fn] = [x for x in self.fn.__globals__.values() if x is tl or x is tl.core]
        own = languages[self.fn]
        if not own or any(tl.core.is_builtin(x.load) for x in own):  # not exchanged yet
            return call(self, *args, **kwargs)
        return self.rewrite()(*args, **kwargs)

    def exchanged(of: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        plain = inspect.unwrap(member)

        def operation(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return plain(*args, **kwargs)

        scope.set_attr(of, name, operation)

    def known_numpy_type(of: Any) -> Any:
        if of.name not in numpy_types:
            numpy_types[of.name] = numpy_type(of)
        return numpy_types[of.name]

    def known_type(self: Any, element_ty: Any, shape: Any) -> None:
        own = (element_ty.name, *[x.value if type(x) is tl.constexpr else x for x in shape])
        if own not in types:
            make_type(self, element_ty, shape)
            types[own] = {**vars(self), "sizes": own[1:]}
        self.__dict__ = types[own]

    def tensor_of_a_known_shape(self: Any, handle: Any, type: Any) -> None:
        sizes = sizes_of(type)
        if sizes not in shapes:
            shapes[sizes] = tl.core.tuple([tl.constexpr(x) for x in sizes]), tl.constexpr(math.prod(sizes))
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[sizes]

    def sizes_of(of: Any) -> Any:
        return of.sizes if type(of) is block_type else ()

    def fitted(x: Any, y: Any) -> Any:
        """Both with the shape of what numpy makes of them."""
        own, other = sizes_of(x.type), sizes_of(y.type)
        if own == other:
            return x, y
        if (own, other) not in wholes:
            wholes[own, other] = list(broadcast(interpreter.interpreter_semantic, x, y)[0].type.sizes)
        whole = wholes[own, other]
        return of_shape(x, own, whole), of_shape(y, other, whole)

    def of_shape(x: Any, own: Any, whole: list[int]) -> Any:
        return x if [*own] == whole else tensor(x.handle, block_type(x.dtype, whole))

    def is_of(x: Any, dtype: str) -> bool:
        return (type(x) is float and dtype[:2] == "fp") or (type(x) is int and x in numbers[dtype])

    def convert_other_types(self: Any, x: Any, y: Any, *rules: bool, **named: bool) -> Any:
        x_type = x.dtype.name if type(x) is tensor else None
        y_type = y.dtype.name if type(y) is tensor else None
        quotient, pointers, checked = rules[3:4] == (True,), rules[:1] == (True,), rules[2:3] != (False,)
        if x_type and y_type:
            if x_type in (numbers if quotient else kept) and x_type == y_type:
                return fitted(x, y)
            if pointers and y_type in ("int32", "int64") and x.dtype.is_ptr():
                return fitted(x, y)
        elif checked and x_type in numbers and is_of(y, x_type):
            return x, tensor(self.scalar_constant(y, x.dtype).handle, x.type)
        elif checked and y_type in numbers and is_of(x, y_type):
            return tensor(self.scalar_constant(x, y.dtype).handle, y.type), y
        return convert(self, x, y, *rules, **named)

    def broadcast_other_shapes(self: Any, x: Any, y: Any) -> Any:
        return (x, y) if sizes_of(x.type) == sizes_of(y.type) else broadcast(self, x, y)

    def with_an_axis(self: Any, x: Any, axis: int) -> Any:
        return interpreter.TensorHandle(x.data[(slice(None),) * axis + (None,)], x.dtype.scalar)

    def unwrap_others(x: Any) -> Any:
        return x if type(x) in unwrapped else unwrap(x)

    function.__call__ = call_within_a_kernel
    tl.core._unwrap_if_constexpr = unwrap_others
    interpreter._patch_attr = exchanged
    interpreter._get_np_dtype = known_numpy_type
    block_type.__init__ = known_type
    tensor.__init__ = tensor_of_a_known_shape
    TritonSemantic.binary_op_type_checking_impl = convert_other_types
    TritonSemantic.broadcast_impl_value = broadcast_other_shapes
    interpreter.InterpreterBuilder.create_expand_dims = with_an_axis
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


def see_one_gpu(worker: str) -> None:
    """Of several GPUs, `pytest -m gpu -n N` gives each worker (gw0, gw1, ...) one to see. CUDA must not have begun."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    if "," in seen:
        gpus = seen.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[int(worker.removeprefix("gw")) % len(gpus)]


def share_the_cpus(workers: int) -> None:
    """Of `pytest -n N` each worker, and each process that it starts, takes its share of the CPUs. By themselves all take all:
    46 on 64 CPUs ran a ninth of the laws of `pytest -m gpu` in twelve minutes."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


# No test pulls the plug, and to wait for a disk takes longer than many a test.
os.fsync = lambda handle: None
ledger.SYNCHRONOUS = "OFF"

testing._get_command = functools.cache(testing._get_command)  # builds all commands for each call

if "PYTEST_XDIST_WORKER" in os.environ:
    see_one_gpu(os.environ["PYTEST_XDIST_WORKER"])
    share_the_cpus(int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    with suppress(ModuleNotFoundError):  # Triton is optional
        hurry_the_interpreter()

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
