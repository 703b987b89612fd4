"""One thread, as in the integration tests."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
