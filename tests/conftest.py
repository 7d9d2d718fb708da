"""Before anything is imported: where there is no GPU, Triton's kernels are interpreted."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
