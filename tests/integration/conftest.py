"""One thread per worker: several workers whose threads wait for each other take minutes."""

from __future__ import annotations

import os

import torch

os.environ["HF_HUB_OFFLINE"] = "1"
torch.set_num_threads(1)
