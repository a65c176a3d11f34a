# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Build a softmax for each device that torch can use, and compare its result with torch's.

This runs in a process of its own, and prints a line of JSON for each device.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from unittest.mock import patch

import torch

from fusedops.generate import tuned
from fusedops.generate.target import Target
from fusedops.jit import env
from fusedops.ops import Softmax
from fusedops.schedule import lookup

__all__ = ["try_devices"]

CURE = "mend what it says (docs/how-to/install.md, 'When something fails'); else please report it"


def try_devices() -> None:
    """Print what came of each device, in the fields of a `Finding`."""
    count = torch.cuda.device_count() if torch.version.cuda else 0
    with tempfile.TemporaryDirectory(prefix="fusedops-doctor-") as cache:
        for name in ("cpu", *(f"cuda:{index}" for index in range(count))):
            # Where there is a GPU, nobody need have a compiler for tensors on the CPU.
            bad = "warning" if name == "cpu" and count else "problem"
            print(json.dumps({"name": name, **_told(torch.device(name), cache, bad)}), flush=True)


def _told(device: torch.device, cache: str, bad: str) -> dict[str, str]:
    """The finding on a device, whose verdict is `bad` where a kernel fails."""
    verdict, cure = "ok", ""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = _tried(device, cache)
        except Exception as error:  # each device has its own finding
            found, verdict, cure = f"{type(error).__name__}: {error}", bad, CURE
    if said and verdict == "ok":
        verdict, cure = "warning", "see what it warns of"
    found = " ".join("; ".join([found, *(str(one.message) for one in said)]).split())
    return {"found": found[:1000], "verdict": verdict, "cure": cure}


def _tried(device: torch.device, cache: str) -> str:
    """Build a softmax in this cache and compare it with torch's; returns the device in words.

    Raises:
        Exception: It cannot be built, or differs.
    """
    target = Target.of(device)
    about = target.arch
    if target.gpu is not None:
        own = tuned.find(target.arch, target.gpu.name)
        files = [one.where for one in (own, lookup.builtin(target.arch)) if one is not None]
        about = f"{target.gpu.name} ({target.arch}), tuned by {', then '.join(files)}"
    if env.offline():
        return f"{about}; nothing is built while FUSEDOPS_OFFLINE=1"
    x = torch.linspace(-4, 4, 3 * 257, device=device).view(3, 257)
    with patch.dict(os.environ, FUSEDOPS_CACHE_DIR=cache, FUSEDOPS_BACKGROUND="0"):
        y = Softmax()(x)
    error = (y - torch.softmax(x, -1)).abs().max().item()
    if not error < 1e-6:
        raise ArithmeticError(f"a softmax on {about} differs from torch's by {error:.1e}")
    return f"{about}; a softmax is built and right"
