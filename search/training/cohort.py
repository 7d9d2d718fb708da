"""The live state of one cohort: members that train together, in lanes that each are one stacked model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recallmap.arch.backbone import Backbone
from recallmap.search.sequences.drawn_ahead import DrawnAhead
from recallmap.search.training import foreign
from recallmap.search.training.batches import Asked, EvaluationSet, Feed
from recallmap.search.training.cuda_graph import CapturedStep
from recallmap.search.training.fewer import Fewer
from recallmap.search.training.lane import Lane, answers, averaged, errors
from recallmap.search.training.padding import Layout, together
from recallmap.search.training.phase_clock import phase
from recallmap.search.training.stacked_model import Stacked
from recallmap.synth import score
from recallmap.synth.task import Split

if TYPE_CHECKING:
    from recallmap.search.trials.single import TrialSpec

Result = TypeVar("Result")

TOKENS_AT_ONCE = 2**17  # of all members of a lane together in one evaluation pass; bounds the memory of the logits

LOGITS_AT_ONCE = 2**26  # the same of logits, where a GPU takes more tokens

# Operations of a member's step (a spec's effort) from which a single member is faster on more than one core. On two cores at
# widths 32 to 512 (measured by hand), a step below 2e8 takes as long on both as on one, or longer; above 6e8 up to 1.8 times
# less.
LARGE = 4e8


def sequences_at_once(kind: str, *, members: int, length: int, batch: int, logits: int) -> int:
    """Sequences of each member in one evaluation pass, on a device of this kind. A GPU takes as many as two training steps,
    which hold what the way back needs besides, where the logits of a sequence are few: short passes leave it idle."""
    least = max(1, TOKENS_AT_ONCE // (members * length))
    return least if kind == "cpu" else max(least, min(2 * batch, LOGITS_AT_ONCE // (members * max(1, logits))))


class Cohort:
    """The live state of N members in training.

    On a GPU all members are one lane: one call of a stacked model, padded to the widest vocabulary. On a CPU a small model
    already fills a core, and stacked tensors leave its cache. So each member is a lane of its own (`at_once` of them), with
    nothing padded, and lanes are shared out among threads of one core each. A single member stays on one core, too, and
    gives the same bits as in a cohort, unless its step is large. On a GPU, too, each member is a lane of its own where a kind
    from outside does not run under torch.vmap as it does alone.
    """

    def __init__(
        self,
        specs: Sequence[TrialSpec],
        device: torch.device,
        at_once: int | None = None,
        starts: Sequence[Mapping[str, Tensor]] | None = None,
    ) -> None:
        alone = device.type == "cuda" and bool(foreign.why_alone(specs, device))
        at_once = at_once or (1 if device.type == "cpu" or alone else len(specs))
        self.specs = list(specs)
        self.device = device
        self.members = list(range(len(specs)))  # those still in training, as indices into specs
        self.steps = max(s.steps for s in specs)
        models = [_model(spec) for spec in specs]
        for model, weights in zip(models, starts, strict=True) if starts else ():
            model.load_state_dict(weights)
        # The members of each lane at the beginning, by which they are evaluated to the end.
        self.groups = [self.members[i : i + at_once] for i in range(0, len(specs), at_once)]
        self.feed = Feed(specs, device, self.groups)
        self.lanes = [
            Lane([specs[m] for m in group], [models[m] for m in group], device, self.steps, captured=not alone)
            for group in self.groups
        ]
        self.bases = [lane.base for lane in self.lanes]  # of groups
        self.fewer = Fewer(len(specs))
        effort = specs[0].effort / max(1, specs[0].steps)
        shared_out = device.type == "cpu" and (len(specs) > 1 or effort < LARGE)
        # After all that may fail on a spec: it shares out threads until it is closed.
        self.crew = Crew(len(self.groups)) if shared_out else None

    @property
    def captured(self) -> list[CapturedStep]:
        """The captured steps of lanes, on a GPU."""
        return [lane.captured for lane in self.lanes if lane.captured]

    def trained(self, after: int) -> Iterator[tuple[int, Tensor]]:
        """Train from step `after` on: yields the number of steps taken and the losses [N] of the last. Where a member takes no
        step it yields before the first, with losses of nan."""
        if after == 0 and min(s.steps for s in self.specs) == 0:
            yield 0, torch.full((len(self.members),), math.nan)
        for step, batches in enumerate(self.feed.after(after), after + 1):
            yield step, self.train_step(batches)

    def train_step(self, batches: Sequence[tuple[Any, Tensor]]) -> Tensor:
        """One optimizer step of every member, from a pool and rows for each lane; losses [N], not yet brought to the host."""
        found = self.each(Lane.train_step, self.lanes, *zip(*batches, strict=True))
        return found[0] if len(found) == 1 else torch.cat(found)

    def each(self, work: Callable[..., Result], *of_lanes: Sequence[Any]) -> list[Result]:
        """`work` for every lane, shared out among threads; its results in order."""
        if self.crew is None or len(of_lanes[0]) == 1:
            return [work(*given) for given in zip(*of_lanes, strict=True)]
        return self.crew.map(work, *of_lanes)

    def weights(self, members: Sequence[int]) -> list[Tensor]:
        """Each of these members' own parameters in a row. They change with the next step."""
        place = self._places()
        return [place[member][0].weights(place[member][1]) for member in members]

    def bad_steps(self, members: Sequence[int]) -> list[int]:
        """The step at which the loss of each was not finite for the first time, from 0; -1: at none."""
        bad = torch.cat([lane.bad_step for lane in self.lanes]).tolist()
        return [bad[self.members.index(member)] for member in members]

    def mean_losses(self, steps: Mapping[int, int]) -> list[float]:
        """The mean loss of each of these members over so many last steps, of which the sum begins anew."""
        sums = torch.cat([lane.loss_sum for lane in self.lanes]).cpu()
        place = self._places()
        for member in steps:
            lane, position = place[member]
            lane.loss_sum[position] = 0.0
        return [
            float(sums[self.members.index(member)] / count) if count else math.nan for member, count in steps.items()
        ]

    def state(self) -> list[Tensor]:
        """All that steps have written, [N, ...] each: a member's row is what it would be alone, with zeros behind it."""
        place = self._places()
        rows = [place[member][0].member(place[member][1]) for member in self.members]
        return [together(values) for values in zip(*rows, strict=True)]

    def restore(self, step: int, states: Sequence[Sequence[Tensor]]) -> None:
        """Go on after so many steps from the state of every member."""
        place = self._places()
        for member, state in zip(self.members, states, strict=True):
            lane, position = place[member]
            lane.put(position, state)
        for lane in self.lanes:
            lane.clock.fill_(step)

    def close(self) -> None:
        """End the cohort's threads."""
        if self.crew is not None:
            self.crew.dismiss()

    def keep(self, positions: list[int]) -> None:
        """Go on with the members at these positions alone."""
        staying, lanes, first = set(positions), [], 0
        for lane in self.lanes:
            count = len(lane.bad_step)
            own = [position for position in range(count) if first + position in staying]
            first += count
            if own:
                lanes.append(lane)
            if 0 < len(own) < count:
                lane.keep(own)
        self.lanes = lanes
        self.members = [self.members[i] for i in positions]
        self.feed.keep(positions)

    def better_fewer(self, going: int, taken: int, left: int, seconds: float) -> bool:
        """True where the cohort should go on with the `going` members alone, after steps `taken` in so many seconds; to be
        called at every evaluation, and followed by `keep`."""
        preparing = sum(captured.seconds for captured in self.captured)
        return self.fewer.pays(going, taken=taken, left=left, training=seconds - preparing, preparing=preparing)

    def evaluation_set(
        self, split: Split, asked: Mapping[int, Asked], ahead: DrawnAhead | None = None
    ) -> EvaluationSet:
        """The sequences of a split for these members, for which `ahead` may have been asked already."""
        return EvaluationSet(asked, split, self.device, self.groups, ahead)

    @phase("evaluating")
    def evaluate(
        self, members: Sequence[int], rows: Sequence[Tensor], tests: EvaluationSet, *, standard_errors: bool = False
    ) -> list[dict[str, float]]:
        """Scores of members, with their own parameters in a row each, on their own sequences of a split; with
        `standard_errors` also those, as `error_name` names them."""
        weights = dict(zip(members, rows, strict=True))
        groups = [(n, own) for n, group in enumerate(self.groups) if (own := [m for m in group if m in weights])]
        found = self.each(
            self._answered,
            [self.bases[number] for number, _ in groups],
            [own for _, own in groups],
            [[weights[m] for m in own] for _, own in groups],
            [tests] * len(groups),
        )
        scores = {}
        for (_, own), of_group in zip(groups, found, strict=True):
            for member, answered, shares, total, (sums, counts) in zip(own, *of_group, strict=True):
                scores[member] = tests.score(member, answered, shares) | {"loss": float(total[0] / total[1])}
                if standard_errors:
                    known = tests.standard_errors(member, answered, shares)
                    if (error := score.standard_error(sums, counts)) is not None:
                        known["loss"] = error
                    scores[member] |= {score.error_name(name): value for name, value in known.items()}
        return [scores[member] for member in members]

    @torch.no_grad()
    def _answered(
        self, base: Backbone, members: Sequence[int], rows: Sequence[Tensor], tests: EvaluationSet
    ) -> tuple[NDArray[Any], Sequence[NDArray[Any] | None], NDArray[np.float64], NDArray[np.float64]]:
        """Answers [n, S, Q] of members of one group, the probabilities that their tasks want [S, Q, V], summed losses and
        weights [n, 2], and those of each sequence [n, 2, S]."""
        specs = [self.specs[m] for m in members]
        low_precision = specs[0].training.dtype == "bfloat16"
        model = Stacked(base, [s.task.shape[1] for s in specs], self.device)
        flat_NP = model.layout.padded(rows)
        pool = tests.pool(members)
        length, count = pool.inputs.shape[2], int(pool.counts_N.max())
        read = max(positions * vocab for positions, vocab in (spec.read_out for spec in specs))
        batch = specs[0].training.batch * specs[0].task.shape[0] // length
        at_once = sequences_at_once(self.device.type, members=len(members), length=length, batch=batch, logits=read)
        wanting = [n for n, member in enumerate(members) if tests.tasks[member].wants_probabilities]
        predictions, probabilities, loss, by_sequence = [], [], [], []
        for start in range(0, count, at_once):
            rows_B = torch.arange(start, min(start + at_once, count), device=self.device)
            rows_NB = torch.where(rows_B < pool.counts_N[:, None], rows_B, -1)
            inputs, at, targets, weight = pool.batch(rows_NB)
            logits = answers(model, low_precision, flat_NP, inputs, at)
            vectors = targets.dim() == logits.dim()
            predictions.append(logits if vectors else logits.argmax(-1))
            if wanting:
                probabilities.append(logits[wanting].softmax(-1).cpu().numpy())
            scored, error = weight.flatten(1).sum(1), errors(logits, targets)
            loss.append(torch.stack([averaged(error, weight) * scored, scored], dim=1))
            by_sequence.append(torch.stack([(error * weight).sum(-1), weight.sum(-1)], dim=1))
        shares: list[NDArray[Any] | None] = [None] * len(members)
        for number, n in enumerate(wanting):
            vocab = specs[n].task.shape[1]
            shares[n] = np.concatenate([part[number] for part in probabilities])[..., :vocab]
        # Fetched once: a pass that waits for its figures keeps a GPU from the next.
        losses = torch.stack(loss).cpu().numpy().sum(axis=0, dtype=np.float64)
        return (
            torch.cat(predictions, dim=1).cpu().numpy(),
            shares,
            losses,
            torch.cat(by_sequence, dim=2).cpu().numpy().astype(np.float64),
        )

    def parameters(self, member: int, row: Tensor) -> dict[str, Tensor]:
        """A member's own parameters by name."""
        layout = Layout(self.base_of(member), [self.specs[member].task.shape[1]], self.device)
        return layout.of_one(row)

    def base_of(self, member: int) -> Backbone:
        """A model that lends a member its form."""
        return next(base for base, group in zip(self.bases, self.groups, strict=True) if member in group)

    def _places(self) -> dict[int, tuple[Lane, int]]:
        """The lane of every member, and its position there."""
        places = [(lane, position) for lane in self.lanes for position in range(len(lane.bad_step))]
        return dict(zip(self.members, places, strict=True))


class Crew:
    """Threads of one core each."""

    def __init__(self, lanes: int) -> None:
        self.cores = torch.get_num_threads()
        torch.set_num_threads(1)  # of the caller, too, whose own work is small
        self.threads = ThreadPoolExecutor(min(self.cores, lanes), initializer=torch.set_num_threads, initargs=(1,))

    def dismiss(self) -> None:
        """End the threads, and give the caller its cores back."""
        self.threads.shutdown(cancel_futures=True)
        torch.set_num_threads(self.cores)

    def map(self, work: Callable[..., Result], *given: Sequence[Any]) -> list[Result]:
        """`work` for all that is given, in order."""
        grad = torch.is_grad_enabled()

        def one(context: Context, *part: Any) -> Result:
            with torch.set_grad_enabled(grad):  # a thread inherits neither the mode nor the context
                return context.run(work, *part)

        return list(self.threads.map(one, [copy_context() for _ in given[0]], *given))


def _model(spec: TrialSpec) -> Backbone:
    length, vocab = spec.task.shape
    model = spec.arch.build(
        vocab=vocab, seed=spec.seed, signal=spec.task.signal, readout=spec.task.readout, length=length
    )
    return model.use(spec.training.implementation)
