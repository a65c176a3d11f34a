# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Base class of the modules: declares ops ahead of calls, and checks settings."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from fusedops.bind.operands import FLOATING
from fusedops.errors import UnsupportedError
from fusedops.functors.fields import is_finite

#: The declarations of all modules by their settings. A plain dictionary, since Dynamo reads one
#: where it would look into a cached function.
declared: dict[tuple[Any, ...], Any] = {}

#: The same of modules whose settings hold functors. Dynamo cannot hash these: each module has its
#: own declarations at hand, and looks here as it is made.
shared: dict[tuple[Any, ...], Any] = {}


class Declares(nn.Module):
    """Base of the modules: declares the ops of its calls as soon as its settings are known.

    Inside torch.compile nothing can be declared, and what a declaration refuses is refused here,
    not at the first call.
    """

    #: The attributes that a declaration depends on.
    _settings: ClassVar[frozenset[str]]
    #: Whether `__init__` has set all of them.
    _settled: bool = False

    def _declare(self) -> None:
        """Declare every op that a call may need."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Declare now, and again when a setting changes; the end of each `__init__`."""
        self._settled = True
        self._declare()

    def __setattr__(self, name: str, value: Any) -> None:
        if self._settled and name in self._settings and name in ("p", "p_hidden"):
            check_probability(type(self).__name__, value, name)
        if not (self._settled and name in self._settings):
            super().__setattr__(name, value)
            return
        before = getattr(self, name)
        super().__setattr__(name, value)
        if torch.compiler.is_compiling():
            self._declare()
            return
        try:
            self._declare()
        except Exception:
            super().__setattr__(name, before)  # the module stays what it was
            self._declare()
            raise

    def _replicate_for_data_parallel(self) -> Any:
        """A replica for `torch.nn.DataParallel`, which sets its parameters one after another."""
        replica: Any = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica._settled = False  # it has the declarations already
        return replica

    def __prepare_scriptable__(self) -> Any:
        """Refuse `torch.jit.script`, which asks for this and compiles no call of an op."""
        raise UnsupportedError(
            f"{type(self).__name__}: torch.jit.script cannot compile a fused op; use torch.compile "
            "or torch.export"
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._settle()


def acts(p: float) -> bool:
    """Whether a dropout with this probability may drop an element.

    Dynamo may trace p as a symbolic number. Then ``p > 0`` is symbolic as well, which older
    releases of torch cannot hash: it must not be part of the key of a dictionary.
    """
    if p > 0:  # noqa: SIM103 (the outcome is not symbolic, the condition may be)
        return True
    return False


def check_dtype(module: str, dtype: torch.dtype | None) -> None:
    """Raise TypeError unless the parameters may have this dtype."""
    if dtype not in (None, *FLOATING):
        allowed = ", ".join(map(str, FLOATING))
        raise TypeError(f"{module}: dtype must be one of {allowed}, got {dtype}")


def check_probability(module: str, p: float, name: str = "p") -> float:
    """A dropout probability as a float; raises ValueError outside of [0, 1]."""
    if not is_finite(p) or not 0 <= p <= 1:
        raise ValueError(f"{module}: {name} must be a probability in [0, 1], got {p!r}")
    return float(p)


def check_finite(module: str, name: str, value: float) -> float:
    """A number as a finite float; raises ValueError for anything else."""
    if not is_finite(value):
        raise ValueError(f"{module}: {name} must be a finite number, got {value!r}")
    return float(value)
