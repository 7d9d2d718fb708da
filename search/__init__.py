"""The pillar over the others: studies, searches, training, the command line."""

import os

# Let waiting threads of PyTorch (OpenMP) sleep, unless the user says otherwise. By default they spin: those of the forward
# pass against those of the backward pass, and all of them against other programs. OpenMP reads this when PyTorch is
# imported, which no file of ours does before.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"}:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
