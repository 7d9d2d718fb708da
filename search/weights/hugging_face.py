"""A kept model as a folder that transformers opens."""

from __future__ import annotations

import json
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from recallmap.results.atomic_write import write_whole
from recallmap.search.documents import content_key, outside
from recallmap.search.documents.nodes import Place, fault
from recallmap.search.training.origin import version
from recallmap.search.weights.kept import About, about_of, save
from recallmap.search.weights.loading import load, read_arch

CODE = "modeling_recallmap"  # the file of this folder that goes beside the weights, and its classes
CONFIG, MODEL = f"{CODE}.RecallmapConfig", f"{CODE}.RecallmapForCausalLM"

INSIDE = "backbone."  # the name of our model in that of transformers


def export(folder: Path, output: Path) -> list[str]:
    """Write config.json, model.safetensors, the modeling file and a model card into the folder `output`; returns their
    names. Raises SpecError where the model is none of token ids with an answer at each position, and OSError where
    something cannot be written."""
    about = about_of(folder)
    place = Place(str(folder))
    if about.signal != "tokens" or about.readout != "each":
        got = f"a model of {about.signal} with readout '{about.readout}'"
        raise fault(place, "", f"got {got}, expected token ids and an answer at each position, as a causal LM has")
    arch = content_key.plain(read_arch(folder, about))
    used = set(outside.named_in(arch).values())
    sources = [one.source for one in outside.loaded() if one.source.code in used]
    if files := [source.code for source in sources if source.path is not None]:
        why = "which an exported folder cannot carry; make an installed package of it, and name its module with --use"
        raise fault(place, "", f"its architecture is of {', '.join(files)}, {why}")
    model = load(folder)
    weights = {f"{INSIDE}{name}": value for name, value in model.state_dict().items()}
    config = _config(arch, about, len(model.blocks), [source.name for source in sources])
    code = resources.files("recallmap.search.weights").joinpath(f"{CODE}.py").read_text(encoding="utf-8")
    written: dict[str, Any] = {
        f"{CODE}.py": code,
        "README.md": _card(about, output),
        "model.safetensors": partial(save, weights),
        "config.json": json.dumps(config, indent=2) + "\n",
    }
    for name, content in written.items():
        write_whole(output / name, content)
    return list(written)


def _config(arch: dict[str, Any], about: About, blocks: int, uses: list[str]) -> dict[str, Any]:
    return {
        "model_type": "recallmap",
        "architectures": ["RecallmapForCausalLM"],
        "auto_map": {"AutoConfig": CONFIG, "AutoModelForCausalLM": MODEL},
        "arch": arch,
        "uses": uses,
        "seed": about.seed,
        "implementation": about.implementation,
        "vocab_size": about.vocabulary,
        "hidden_size": arch["width"],
        "num_hidden_layers": blocks,
        "tie_word_embeddings": False,  # a tied head reads the embedding itself
        "dtype": "float32",
        "use_cache": True,
        "recallmap_version": version("recallmap"),
        "recallmap_record": about.key,
    }


def _card(about: About, output: Path) -> str:
    score = "" if about.score is None else f" Its {about.metric} on test is {about.score:.4g}."
    options = ", ".join(f"{name} {value}" for name, value in about.task.items() if name != "kind")
    return f"""---
library_name: transformers
tags: [recallmap]
---

# {about.arch} on {about.task.get("kind", "a task")}

A model that recallmap trained on the task {about.task.get("kind", "")} ({options}), on
sequences of {about.length} tokens.{score} Its record has the key `{about.key}`.

The architecture's code is in the package recallmap, which must be installed. transformers runs `{CODE}.py`, which imports it:

```python
from transformers import AutoModelForCausalLM

model = AutoModelForCausalLM.from_pretrained("{output.name}", trust_remote_code=True)
```

Inputs are token ids from 0 to {about.vocabulary - 1} of the task's own vocabulary, without padding; there is no tokenizer.
"""
