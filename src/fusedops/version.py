# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The version of the package: as in pyproject.toml and in include/fusedops/core/config.cuh.

May import: nothing of fusedops.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
