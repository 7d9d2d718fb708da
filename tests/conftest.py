"""Before anything is imported: where there is no GPU, Triton's kernels are interpreted, and signals are heard.

A shell without a terminal starts jobs deaf to SIGINT, `nohup` to SIGHUP, and all their children are: tests of who ends a run
would wait for ever.
"""

import os
import signal

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
