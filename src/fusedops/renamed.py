# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Modules under the names that version 0.1 had for them, so that what it pickled can be read.

Only modules with classes that are pickled are listed. They are looked for under these names after
all else has failed; new code does not use them.

May import: nothing of fusedops.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["install"]

#: Where each module is now.
NAMES = {
    "fusedops.check": "fusedops.testing.comparison",
    "fusedops.explanation": "fusedops.explain.report",
    "fusedops.signature": "fusedops.prebuild.signature",
}


class _Finder(MetaPathFinder, Loader):
    """Finds a module by its old name: one with the same contents as that of the new name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in NAMES else None

    def exec_module(self, module: ModuleType) -> None:
        found = vars(importlib.import_module(NAMES[module.__name__]))
        vars(module).update({k: v for k, v in found.items() if not k.startswith("__")})


def install() -> None:
    """Have old names found from now on."""
    sys.meta_path.append(_Finder())
