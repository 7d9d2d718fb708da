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
    largest one, and throws the answer away, since no kernel is debugged. It broadcasts blocks of one shape."""
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    function: Any = interpreter.InterpretedFunction
    call, numpy_type, broadcast = function.__call__, interpreter._get_np_dtype, TritonSemantic.broadcast_impl_value
    block_type: Any = tl.core.block_type
    make_type = block_type.__init__
    numpy_types: dict[str, Any] = {}
    types: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, tuple[Any, Any]] = {}
    languages: dict[Any, list[Any]] = {}

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
        own = (element_ty.name, *(x.value if type(x) is tl.constexpr else x for x in shape))
        if own not in types:
            make_type(self, element_ty, shape)
            types[own] = dict(vars(self))
        vars(self).update(types[own])

    def tensor_of_a_known_shape(self: Any, handle: Any, type: Any) -> None:
        sizes = tuple(type.shape) if type.is_block() else ()
        if sizes not in shapes:
            shapes[sizes] = tl.core.tuple([tl.constexpr(x) for x in sizes]), tl.constexpr(math.prod(sizes))
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shapes[sizes]

    def broadcast_other_shapes(self: Any, x: Any, y: Any) -> Any:
        blocks = x.type.is_block() and y.type.is_block()
        return (x, y) if blocks and x.handle.data.shape == y.handle.data.shape else broadcast(self, x, y)

    function.__call__ = call_within_a_kernel
    interpreter._patch_attr = exchanged
    interpreter._get_np_dtype = known_numpy_type
    block_type.__init__ = known_type
    tl.core.tensor.__init__ = tensor_of_a_known_shape
    TritonSemantic.broadcast_impl_value = broadcast_other_shapes
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=builder.options.debug)


def see_one_gpu(worker: str) -> None:
    """Of several GPUs, `pytest -m gpu -n N` gives each worker (gw0, gw1, ...) one to see. CUDA must not have begun."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    if "," in seen:
        gpus = seen.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[int(worker.removeprefix("gw")) % len(gpus)]


# No test pulls the plug, and to wait for a disk takes longer than many a test.
os.fsync = lambda handle: None
ledger.SYNCHRONOUS = "OFF"

testing._get_command = functools.cache(testing._get_command)  # builds all commands for each call

if "PYTEST_XDIST_WORKER" in os.environ:
    see_one_gpu(os.environ["PYTEST_XDIST_WORKER"])

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    with suppress(ModuleNotFoundError):  # Triton is optional
        hurry_the_interpreter()

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
