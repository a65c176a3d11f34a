# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The mutations fit the code as it is; `python tests/mutations.py` tries them."""

import pytest
from mutations import MUTATIONS, ROOT, broken


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_applies(mutation):
    text = (ROOT / mutation.file).read_text(encoding="utf-8")
    assert broken(mutation, text) != text
