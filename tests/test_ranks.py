# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The processes that tests of distributed tensors run on: what goes wrong in one is told."""

import contextlib
import socket

import pytest
import torch.distributed as dist
from ranks import Ranks, needs_gloo

pytestmark = needs_gloo


def test_a_rank_that_cannot_start_says_why():
    with contextlib.closing(Ranks(2, "smoke signals")) as group:
        for _ in range(2):  # it is started anew
            with pytest.raises(pytest.fail.Exception, match=r"(?s)rank \d: .*smoke signals"):
                group.run(dist.get_rank)


def test_a_rank_that_ends_unasked_is_named():
    with contextlib.closing(Ranks(2)) as group:
        group.run(dist.get_rank)
        group._processes[1].kill()
        group._processes[1].join()
        with pytest.raises(pytest.fail.Exception, match="rank 1: ended with status -9"):
            group.run(dist.get_rank)
        group.run(dist.get_rank)


def test_nobody_can_take_the_port_of_a_group():
    with contextlib.closing(Ranks(2)) as group:
        group.run(dist.get_rank)
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", group._store.port))
