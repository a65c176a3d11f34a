# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The processes on two GPUs that tests of distributed tensors run on."""

import pytest
import torch

#: Two GPUs by NCCL, as a parameter of `ranks`.
TWO_GPUS = pytest.param(
    ("nccl", 2),
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(
            torch.cuda.device_count() < 2 or not torch.distributed.is_nccl_available(),
            reason="needs two GPUs and NCCL",
        ),
    ],
)
