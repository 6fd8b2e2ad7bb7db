from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_weights_and_data_every_time() -> None:
    torch.manual_seed(0)
