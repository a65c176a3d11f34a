# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m fusedops`: the same as the command `fusedops`.

May import: cli.
"""

from fusedops.cli import main

if __name__ == "__main__":
    main()
