# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Host kernels over threads: every row once, from any thread, and after a fork."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from dispatchers import counting

from fusedops import _runtime


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(params=[False, True], ids=["team of torch", "own threads"], autouse=True)
def own(request):
    _runtime.use_own_threads(request.param)
    yield
    _runtime.use_own_threads(False)


@pytest.mark.parametrize("number", [1, 2, 3, 7])
@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 1000])
def test_every_row_is_run_once(library, threads, number, rows):
    threads(number)
    for grain in (1, 7, 64, 2000):
        dispatch = counting(library, grain)
        for _ in range(20):
            out = torch.zeros(rows, dtype=torch.int64)
            dispatch(torch.empty(rows, 1), out=out)
            assert bool((out == 1).all())


def test_callers_in_parallel(library, threads):
    threads(3)
    dispatch = counting(library)
    wrong = []

    def caller():
        for rows in list(range(1, 200)) * 3:
            out = torch.zeros(rows, dtype=torch.int64)
            dispatch(torch.empty(rows, 1), out=out)
            if not bool((out == 1).all()):
                wrong.append(rows)

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    assert not wrong
    assert dispatch.launches == 4 * 3 * 199


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(library, threads):
    threads(2)
    dispatch = counting(library)
    kept = torch.zeros(500, dtype=torch.int64)
    dispatch(torch.empty(500, 1), out=kept)  # the parent's pool is there
    child = os.fork()
    if child == 0:
        status = 1
        try:
            # Tensors in numpy memory and no torch operator: torch's own threads do not survive.
            for _ in range(50):
                kept.numpy()[:] = 0
                dispatch(torch.empty(500, 1), out=kept)
                assert (kept.numpy() == 1).all()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    out = torch.zeros(500, dtype=torch.int64)
    dispatch(torch.empty(500, 1), out=out)
    assert bool((out == 1).all())
