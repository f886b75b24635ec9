"""For every test: one thread, so that workers share the cores and sums do not depend on their number."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

torch.set_num_threads(1)
