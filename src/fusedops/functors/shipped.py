# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The library's own functors: every name that their modules list in ``__all__``.

`fusedops` and `fusedops.functors` export what stands here, so a functor's name is written once, in
the module that defines it.
"""

from typing import TYPE_CHECKING

from fusedops.functors.activations import *
from fusedops.functors.arithmetic import *
from fusedops.functors.biases import *
from fusedops.functors.dropout import *
from fusedops.functors.masks import *
from fusedops.functors.quantize import *
from fusedops.functors.residual import *
from fusedops.functors.rotate import *

if not TYPE_CHECKING:  # type checkers follow the imports, but cannot compute a list
    __all__ = [name for name, one in globals().items() if isinstance(one, type)]
