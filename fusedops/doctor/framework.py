# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""torch, asked in a process of its own: a broken one may take its process with it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from fusedops.doctor.finding import Finding, Verdict, one_line
from fusedops.doctor.graphics import Driver

__all__ = ["check_torch"]

OLDEST = (2, 10)
SECONDS = 300
# CUDA is asked only of a build that has it.
_ASK = """
import json, torch
cuda = torch.version.cuda
usable = bool(cuda) and torch.cuda.is_available()
print("\\n" + json.dumps({"version": torch.__version__, "cuda": cuda, "usable": usable}))
"""


def check_torch(driver: Driver) -> Finding:
    """Whether torch is there, new enough, and able to use the GPUs that are here."""
    cure = "pip install 'torch>=2.10'"
    # As this process: without the folder that it was started in.
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{_ASK}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        said = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return Finding("torch", f"does not answer: {one_line(error)}", Verdict.PROBLEM, cure)
    if said is None:
        last = done.stderr.strip().splitlines()[-1:]
        reason = last[0] if last else f"exit status {done.returncode}"
        return Finding("torch", f"cannot be imported: {reason}", Verdict.PROBLEM, cure)
    version, cuda = said["version"], said["cuda"]
    found = f"{version}, {f'for CUDA {cuda}' if cuda else 'for CPUs only'}"
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or (int(number[1]), int(number[2])) < OLDEST:
        return Finding("torch", found, Verdict.PROBLEM, cure)
    if driver.devices and not cuda:
        gpu = "install a build of torch for CUDA to use the GPU (see pytorch.org)"
        return Finding("torch", found, Verdict.WARNING, gpu)
    if driver.devices and not said["usable"]:
        gpu = "torch does not see the GPU: see that the driver is one for torch's CUDA"
        return Finding("torch", f"{found}, no GPU usable", Verdict.WARNING, gpu)
    return Finding("torch", found)
