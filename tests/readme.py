# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The README's table of jobs: `python tests/readme.py` writes it into the README.

Its rows are those of `fusedops.declare.wanted`, which errors quote as well.
"""

import re
from pathlib import Path

from fusedops.declare.wanted import WANTED, Wanted

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PLACE = re.compile(r"(?<=<!-- jobs -->\n).*?(?=<!-- /jobs -->)", re.DOTALL)
FOLDERS = {"tutorials": "tutorial", "how-to": "how-to", "explanation": "explanation"}


def row(one: Wanted) -> str:
    """One line of the table."""
    code = one.write or one.code
    for long, short in (("fusedops.", "fo."), ("torch.nn.functional.", "F.")):
        code = code if one.write else code.replace(long, short)
    page = "torch's"
    if one.page:
        page = f"[{FOLDERS[one.page.split('/')[0]]}](docs/{one.page})"
    return f"| {one.job} | `{code}` | {page} |"


def table() -> str:
    """The whole table, jobs of this library first."""
    rows = [row(one) for one in WANTED if one.job]
    return "\n".join(["| I want | write | more |", "| --- | --- | --- |", *rows, ""])


def main() -> None:
    """Write it."""
    text = README.read_text(encoding="utf-8")
    README.write_text(PLACE.sub(lambda _: table(), text), encoding="utf-8")


if __name__ == "__main__":
    main()
