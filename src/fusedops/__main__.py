# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m fusedops`, and the command `fusedops`: the command line, if it can be had.

The package itself works without the packages that draw the command line's output.

May import: cli.
"""

from __future__ import annotations

import sys
import warnings


def main() -> None:
    """The entry point of the command `fusedops`."""
    try:
        import rich  # noqa: F401 (what is missing is said here, in one line)
        import typer  # noqa: F401
    except ImportError as error:
        raise SystemExit(
            f"fusedops: the command line needs rich and typer ({error}): pip install rich typer"
        ) from None
    # torch works without numpy, which nothing here needs, and warns of that when it is imported.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy: No module named", UserWarning)
    sys.warnoptions.append("ignore:Failed to initialize NumPy:UserWarning")  # processes that build
    from fusedops.cli import main as run

    run()


if __name__ == "__main__":
    main()
