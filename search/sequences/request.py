"""A request for sequences, and the source that answers it: the same bits in whatever process it does."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from recallmap.search.sequences.prepared import Prepared
from recallmap.synth.batch import Batch
from recallmap.synth.streams import Stream
from recallmap.synth.task import Split, Task


@dataclass(frozen=True, kw_only=True)
class Request:
    """Sequences start .. start + count - 1 of a stream.

    columns  the least number of columns that they are prepared with
    scored   True where the batch itself is wanted, too, for the task to score answers to it
    goes_on  True where the sequences that follow will be asked for next
    """

    task: Task
    seed: int
    split: Split
    start: int
    count: int
    columns: int = 1
    scored: bool = False
    goes_on: bool = False

    @property
    def stream(self) -> tuple[Task, int, Split]:
        return self.task, self.seed, self.split


@dataclass(frozen=True)
class Foreign:
    """A request whose task a user's code defines. Where it arrives it is the request: the code is executed there first."""

    request: Request
    sources: tuple[Any, ...]  # of `search.documents.outside`

    def __reduce__(self) -> tuple[Callable[..., Request], tuple[Any, ...]]:
        return _arrived, (self.sources, pickle.dumps(self.request))


def _arrived(sources: tuple[Any, ...], pickled: bytes) -> Request:
    from recallmap.search.documents import outside  # which workers without foreign tasks do not load

    outside.follow(sources)
    found: Request = pickle.loads(pickled)
    return found


@dataclass(frozen=True)
class Answer:
    """Sequences prepared for a pool, and their batch where the request says `scored`."""

    prepared: Prepared
    batch: Batch | None

    def narrow(self) -> Answer:
        return replace(self, prepared=self.prepared.narrow())


class Source:
    """Answers requests one at a time. It keeps `most` streams (None: all) whose last block has sequences left that will be
    asked for next."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.streams: OrderedDict[tuple[Task, int, Split], Stream] = OrderedDict()

    def answer(self, request: Request) -> Answer:
        """Whatever the task raises is raised here."""
        stream = self.streams.pop(request.stream, None) or Stream(*request.stream)
        batch = stream.take(request.start, request.count)
        if request.goes_on and (request.start + request.count) % stream.block:
            self.streams[request.stream] = stream
            if self.most is not None and len(self.streams) > self.most:
                self.streams.popitem(last=False)
        return Answer(Prepared.of(batch, request.columns), batch if request.scored else None)
