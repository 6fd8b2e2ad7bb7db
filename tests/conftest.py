"""One thread per process: these tensors are tiny, and threads of two processes on few cores stall each other."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
