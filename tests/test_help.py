# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What help() and dir() show of ops: what a user calls, and nothing of how it is done."""

import inspect
import pydoc
import re

import pytest

import fusedops as fo
from fusedops.declare.options import OPTIONS

OPS = [fo.Softmax, fo.LogSoftmax, fo.LayerNorm, fo.RMSNorm, fo.L2Norm, fo.GroupNorm]
METHODS = {"unfused", "explain", "dropout_mask"}
VALUES = {"load", "store", "constants", "operands", "slots", "outputs", "saves", "dropouts"}


@pytest.mark.parametrize("op", OPS)
def test_help_explains_the_options_of_a_call_and_every_argument(op):
    text = pydoc.plain(pydoc.render_doc(op))
    for option in OPTIONS:
        assert re.search(rf"^ \|  +- {option} \(", text, re.MULTILINE), option
    assert "as `RowOp`" not in text
    documented = inspect.getdoc(op) if op is not fo.LogSoftmax else inspect.getdoc(fo.Softmax)
    if op in (fo.Softmax, fo.LayerNorm, fo.GroupNorm):
        for argument in inspect.signature(op).parameters:
            assert re.search(rf"^    {argument}: ", documented, re.MULTILINE), argument


@pytest.mark.parametrize("op", OPS)
def test_help_shows_no_internals(op):
    text = pydoc.plain(pydoc.render_doc(op))
    methods = set(re.findall(r"^ \|  ([a-z]\w*)\(self", text, re.MULTILINE))
    assert methods == METHODS
    shown = set(re.findall(r"^ \|  ([a-z]\w*)(?: =|$)", text, re.MULTILINE))
    assert shown == {"launches"}


def test_dir_shows_what_is_for_users():
    for op in (fo.Softmax(), fo.GroupNorm(2, store=[fo.Affine("g")])):
        names = {name for name in dir(op) if not name.startswith("_")}
        assert names == METHODS | VALUES | {"causal", "launches"}
        assert all(hasattr(op, name) for name in names)


def test_a_class_of_ones_own_shows_all_that_its_author_writes():
    class Own(fo.Softmax):
        extra = 3

    assert {"extra", "reference", "cpp", "kept"} <= {*dir(Own)}
    assert {"extra", "reference", "cpp", "kept"} <= {*dir(Own())}


def test_dir_of_the_package_shows_public_names_alone():
    names = {name for name in dir(fo) if not name.startswith("__")}
    assert names == {*fo.__all__}
