"""Samplers: every way to propose points of a search. The registry of samplers is this type."""

from __future__ import annotations

from recallmap.search.samplers.evolution import Evolution
from recallmap.search.samplers.gp import Gp
from recallmap.search.samplers.nsga2 import Nsga2
from recallmap.search.samplers.nsga3 import Nsga3
from recallmap.search.samplers.random import Random
from recallmap.search.samplers.tpe import Tpe

Sampler = Random | Tpe | Nsga2 | Nsga3 | Gp | Evolution
