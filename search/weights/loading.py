"""The model of a kept trial, as a torch module."""

from __future__ import annotations

import os
from pathlib import Path

from recallmap.arch.backbone import Backbone, BackboneSpec
from recallmap.search import codec
from recallmap.search.documents import outside
from recallmap.search.documents.nodes import Fault, Place, SpecError, fault
from recallmap.search.weights.kept import AGAIN, ARCHITECTURE, WEIGHTS, About, about_of


def load(folder: str | os.PathLike[str], *, arch: BackboneSpec | None = None) -> Backbone:
    """The model that `recallmap run STUDY --keep-weights DIR` kept in DIR/KEY: token ids [B, T] -> logits [B, T, vocab], with
    the weights of the checkpoint that the record reports. It is on the CPU, in float32 and in eval mode.

    arch  another architecture with parameters of the same names and shapes, such as one with more steps at test time. One of
          a class that no document can name, as of a notebook, is given here as well

    Code of one's own is not executed: name it first with `use`. Raises SpecError where files are missing, damaged or not of
    one model.
    """
    place = Path(folder)
    about = about_of(place, with_arch=arch is None)
    return _filled(read_arch(place, about) if arch is None else arch, about, place)


def read_arch(folder: Path, about: About) -> BackboneSpec:
    """The architecture in a folder. Raises SpecError; where it needs code from outside, it says which."""
    try:
        return codec.read_arch(folder / ARCHITECTURE)
    except SpecError as error:
        loaded = {one.source.code for one in outside.loaded()}
        lacking = [code for code in dict.fromkeys(about.code.values()) if code not in loaded]
        why = "cannot be read here; give an architecture of a class that no file defines by load(..., arch=...)"
        if lacking:
            why = (
                f"is of {', '.join(lacking)}, which is not loaded; name the file by --use, or recallmap.use from Python"
            )
        raise SpecError([Fault(Place(str(folder / ARCHITECTURE)), "", why), *error.faults]) from error


def _filled(arch: BackboneSpec, about: About, folder: Path) -> Backbone:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    place = Place(str(folder / WEIGHTS))
    length = about.length if about.readout == "last" else None
    try:
        model = arch.build(
            vocab=about.vocabulary,
            seed=about.seed,
            signal=about.signal,  # type: ignore[arg-type]
            readout=about.readout,  # type: ignore[arg-type]
            length=length,
        )
        weights = load_file(folder / WEIGHTS)
    except (ValueError, SafetensorError) as error:
        raise fault(place, "", f"cannot be read: {error}; {AGAIN}") from error
    own = model.state_dict()
    wrong = [
        *(f"{name} is missing" for name in own if name not in weights),
        *(f"{name} is no parameter of {arch.name}" for name in weights if name not in own),
        *(
            f"{name} has the shape {list(weights[name].shape)}, expected {list(own[name].shape)}"
            for name in own
            if name in weights and weights[name].shape != own[name].shape
        ),
    ]
    if wrong:
        raise SpecError(Fault(place, "", line) for line in wrong)
    model.load_state_dict(weights)
    return model.use(about.implementation).eval()
