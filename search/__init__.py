"""The roof: ask, answer, keep."""

import os

# Threads of PyTorch (OpenMP) that wait for work sleep, unless the user says otherwise. Else they spin: those of the forward
# pass against those of the backward pass, and all of them against whatever else the machine does. OpenMP reads this when
# PyTorch is imported, which no file of ours does before.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY"}:
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
