# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The mutations fit the code as it is; `python tests/mutations.py` tries them."""

import pytest
from mutations import MUTATIONS, PACKAGE, TESTS, broken

from fusedops.jit.env import include_dir

ROOTS = {
    "src": PACKAGE.parents[1],
    "include": include_dir().parent,
    "csrc": TESTS.parent,
}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_applies(mutation):
    text = (ROOTS[mutation.file.partition("/")[0]] / mutation.file).read_text()
    assert broken(mutation, text) != text
