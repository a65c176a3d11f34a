# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of benchmarks/sharded_bytes.py is what a step of the example moves."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import device, needs_gloo
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = [pytest.mark.thorough, needs_gloo]

ROOT = Path(__file__).parent.parent


class Received(TorchDispatchMode):
    """Counts the bytes that a rank receives in all-gathers, reduce-scatters and all-reduces.

    Attributes:
        bytes: Of all-gathers and reduce-scatters.
        reduced: Of all-reduces.
    """

    def __init__(self):
        super().__init__()
        self.bytes = self.reduced = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if any(issubclass(one, DTensor) for one in types):
            return NotImplemented
        result = function(*arguments, **(named or {}))
        name = str(function)
        if name.startswith("_c10d_functional.all_reduce"):
            self.reduced += result.nbytes
        elif name.startswith(("_c10d_functional.all_gather", "_c10d_functional.reduce_scatter")):
            self.bytes += abs(result.nbytes - arguments[0].nbytes)
        elif name.startswith(("c10d._allgather_base_", "c10d._reduce_scatter_base_")):
            self.bytes += abs(arguments[0].nbytes - arguments[1].nbytes)
        return result


def a_step():
    sys.path += [str(ROOT / "benchmarks"), str(ROOT / "examples")]
    import sharded
    from sharded_bytes import of_a_step

    world, sizes = dist.get_world_size(), sharded.Sizes(batch=8)
    for shape in ((1, world), (world, 1)):
        mesh = init_device_mesh(device(), shape, mesh_dim_names=("data", "tensor"))
        model = sharded.parallelize(sharded.Model(sizes).to(device()), mesh)
        at = mesh["data"].get_local_rank()
        given = [one.chunk(shape[0])[at].to(device()) for one in sharded.batch(0, sizes)]
        step = sharded.Training(model, *given)
        step()
        with Received() as counted:
            step()
        told = of_a_step(sizes, *shape, torch.float32.itemsize)
        assert counted.bytes == told.all
        logits = sizes.batch // shape[0] * sizes.tokens * sizes.words * torch.float32.itemsize
        assert told.loss < logits / 2  # which are not gathered
        # AdamW reads each norm's gradient three times, and each time it is a sum over ranks.
        norms = 2 * sizes.blocks + 2
        wanted = 3 * norms * sizes.dim * torch.float32.itemsize if shape[1] > 1 else 0
        assert counted.reduced == wanted


def test_a_step_moves_what_arithmetic_says(four_ranks):
    four_ranks.run(a_step)
