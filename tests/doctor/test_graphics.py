# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Drivers and GPUs of all kinds, played by a library that answers as the driver's does."""

from __future__ import annotations

import pytest

from fusedops.doctor.finding import Verdict
from fusedops.doctor.graphics import ask_driver, check_driver, check_gpus


def test_no_driver_is_fine(monkeypatch):
    monkeypatch.setattr("fusedops.doctor.graphics.LIBRARY", "libnothing.so.1")
    driver = ask_driver()
    assert driver.devices == ()
    for finding in (check_driver(driver, 13), check_gpus(driver)):
        assert finding.verdict is Verdict.OK
        assert "CPU" in finding.found


def test_a_library_that_is_no_driver_is_none(monkeypatch, tmp_path):
    (tmp_path / "libcuda.so.1").write_text("not an ELF file")
    monkeypatch.setattr("fusedops.doctor.graphics.LIBRARY", str(tmp_path / "libcuda.so.1"))
    assert ask_driver().cuda is None


def test_a_gpu_that_serves(machine):
    driver = machine(cuda=13010)
    assert driver.cuda == (13, 1)
    assert check_driver(driver, 13).verdict is Verdict.OK
    finding = check_gpus(driver)
    assert finding.verdict is Verdict.OK
    assert finding.found == "0: Fake GPU (sm_90, 80 GiB)"


def test_a_driver_without_a_gpu_is_fine(machine):
    for driver in (machine(gpus=0), machine(init=100)):
        assert check_gpus(driver).verdict is Verdict.OK
        assert "CUDA_VISIBLE_DEVICES" in check_gpus(driver).found


def test_a_driver_that_does_not_start_is_told(machine):
    finding = check_gpus(machine(init=803))
    assert finding.verdict is Verdict.WARNING
    assert "CUDA error 803 (as the test says)" in finding.found
    assert "kernel module" in finding.cure


@pytest.mark.parametrize(("gpus", "verdict"), [(1, Verdict.PROBLEM), (0, Verdict.WARNING)])
def test_a_driver_that_is_too_old(machine, gpus, verdict):
    finding = check_driver(machine(cuda=11080, gpus=gpus), 12)
    assert finding.verdict is verdict
    assert "11.8" in finding.found
    assert "525.60.13" in finding.cure


def test_an_nvrtc_newer_than_the_driver_says_what_each_needs(machine):
    driver = machine(cuda=12080)
    assert check_driver(driver, 12).verdict is Verdict.OK
    finding = check_driver(driver, 13)
    assert finding.verdict is Verdict.PROBLEM
    assert "580.65.06" in finding.cure
    assert "nvidia-cuda-nvrtc-cu12" in finding.cure


def test_a_gpu_that_is_too_old(machine):
    finding = check_gpus(machine(capability=75))
    assert finding.verdict is Verdict.PROBLEM
    assert "sm_80" in finding.cure
    finding = check_gpus(machine(gpus=2, capability=75, other=90))
    assert finding.verdict is Verdict.WARNING
    assert "cuda:0" in finding.cure
    assert "sm_75" in finding.found
    assert "1: Fake GPU (sm_90" in finding.found
