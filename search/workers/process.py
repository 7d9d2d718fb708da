"""The inside of a worker process: requests come and answers go over a pair of sockets.

It ends as soon as the other end of its socket is closed, however that comes about.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np


def serve(answer: Callable[[Any], Any]) -> None:
    """Answer requests from standard input, a socket, until it is closed. Where `answer` fails the answer is None: who asked
    does the same himself, and meets the same error."""
    wire = socket.socket(fileno=0)
    asked: SimpleQueue[tuple[int, bytes]] = SimpleQueue()
    threading.Thread(target=_listen, args=(wire, asked), daemon=True).start()
    with suppress(OSError):  # nobody listens any more
        while True:
            number, request = asked.get()
            send(wire, (number, _answered(answer, request)))


def _answered(answer: Callable[[Any], Any], pickled: bytes) -> Any:
    try:
        return answer(pickle.loads(pickled))
    except Exception:
        return None


def _listen(wire: socket.socket, asked: SimpleQueue[tuple[int, bytes]]) -> None:
    """Hear requests while others are answered, so that who asks never waits; and the end, in the midst of an answer."""
    try:
        while True:
            asked.put(receive(wire))
    finally:
        os._exit(0)


def send(wire: socket.socket, message: Any) -> None:
    """Send a message; its arrays are not copied. Raises OSError where nobody listens."""
    arrays: list[pickle.PickleBuffer] = []
    body = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
    parts = [memoryview(body), *(array.raw() for array in arrays)]
    wire.sendall(struct.pack(f"<{len(parts) + 1}Q", len(parts), *(part.nbytes for part in parts)))
    for part in parts:
        wire.sendall(part)


def receive(wire: socket.socket) -> Any:
    """The next message. Raises EOFError where the other end is closed."""
    (count,) = struct.unpack("<Q", _exactly(wire, 8))
    body, *arrays = (_exactly(wire, size) for size in struct.unpack(f"<{count}Q", _exactly(wire, 8 * count)))
    return pickle.loads(body, buffers=arrays)


def _exactly(wire: socket.socket, size: int) -> memoryview:
    """So many bytes. The lock of the interpreter is taken once, when all are there, and not for each part."""
    held = np.empty(size, dtype=np.uint8).data
    got = 0
    while got < size:
        part = wire.recv_into(held[got:], size - got, socket.MSG_WAITALL)
        if not part:
            raise EOFError
        got += part
    return held
