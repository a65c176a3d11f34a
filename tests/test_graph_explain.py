# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fo.explain_graph` and `fo.fuse`: what they say, and that saying it builds nothing."""

import shutil

import pytest
import torch
from cases import raises, randn
from references import check
from torch import nn
from torch.nn import functional

import fusedops as fo
from fusedops.testing import count_launches


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.plain = nn.LayerNorm(8), nn.Dropout(0.1), nn.LayerNorm(8)

    def forward(self, x, residual):
        total = self.drop(x) + residual
        return self.plain(self.norm(total) @ torch.ones(8, 8)), total


def test_the_table():
    torch._dynamo.reset()
    with count_launches() as launches:
        report = fo.explain_graph(Block(), randn(2, 3, 8), randn(2, 3, 8))
    assert not launches
    assert [one.what for one in report.fused] == ["layer_norm"]
    assert [one.what for one in report.left] == ["layer_norm"]
    # dropout reads and writes 192 bytes, the sum 3 * 192, the norm 2 * 192 and 2 * 32;
    # the kernel reads x, residual, gamma and beta and writes y and the sum.
    assert report.moved == (2 * 192 + 3 * 192 + 2 * 192 + 64, 4 * 192 + 64)
    text = str(report)
    assert "explain_graph(Block): 1 graph, 1 row op fused, 1 left; 1408 -> 832 bytes" in text
    assert "LayerNorm(load=[Dropout(p='p'), Residual(residual='residual', alpha=1.0, " in text
    assert "from   dropout, total, layer_norm" in text
    assert "dropout by the contract of fusedops" in text
    assert "ends at matmul: not elementwise" in text
    assert "layer_norm: nothing around it can join" in text


def test_neighbours_with_one_reason_share_a_line():
    def program(x, w, table, index):
        total = x @ w + table[index]
        y = functional.layer_norm(total, (8,)) * torch.lgamma(x)
        return y @ w, y.cumsum(-1), functional.relu(y, inplace=True)

    torch._dynamo.reset()
    index = torch.zeros(4, dtype=torch.long)
    report = fo.explain_graph(program, randn(4, 8), randn(8, 8), randn(3, 8), index)
    (found,) = report.fused
    text = str(report)
    assert text.count("not elementwise") == 1
    assert text.count("no functor can hold it") == 1
    lines = [line.split("ends at ")[1] for line in text.splitlines() if "ends at" in line]
    assert {name for line in lines for name in line.split(": ")[0].split(", ")} == {*found.why}
    for line in lines:
        names, why = line.split(": ")
        assert {found.why[name] for name in names.split(", ")} == {why}


def test_a_functor_holds_what_has_a_spelling():
    def program(x, a, b):
        return torch.softmax(torch.where(a ^ b, torch.asin(x), x.acos()), -1)

    torch._dynamo.reset()
    (found,) = fo.explain_graph(program, randn(4, 8), randn(4, 8) > 0, randn(4, 8) > 0).fused
    assert found.nodes == ("xor", "asin", "acos", "where", "softmax")


def test_the_picture(tmp_path):
    torch._dynamo.reset()
    report = fo.explain_graph(Block().eval(), randn(2, 3, 8), randn(2, 3, 8))
    text = report.dot()
    assert text.count("subgraph cluster_0_0") == 1
    assert '"0.total" -> "0.layer_norm"' in text
    assert text.count("{") == text.count("}")
    if shutil.which("dot"):
        assert "<svg" in report.svg(tmp_path / "graph.svg")
        assert (tmp_path / "graph.svg").read_text().lstrip().startswith("<?xml")
    else:
        with pytest.raises(fo.UnsupportedError, match="install Graphviz"):
            report.svg()
        assert report._repr_svg_() is None


def test_a_function_becomes_an_op():
    torch._dynamo.reset()

    @fo.fuse
    def gated(x, gate, weight):
        """Doc."""
        return functional.rms_norm(x * torch.exp(-gate), (8,), weight, 1e-6)

    assert repr(gated) == "fuse(gated): declared by its first call"
    assert gated.__doc__ == "Doc."
    x, gate, weight = randn(4, 8), randn(4, 8, seed=1), randn(8, seed=2)
    y = gated(x, gate, weight)
    given = [t.double() for t in (x, gate, weight)]
    check(y, gated.function(*given), gated.function(x, gate, weight))
    assert gated.declaration == (
        "@fo.functor\ndef neg_exp(x):\n    t0 = -x\n    return torch.exp(t0)\n\n"
        "RMSNorm(load=[neg_exp(), Scale(scale='scale')], store=[Affine(gamma='gamma', beta=None)], "
        "eps=1e-06, stats=False)"
    )
    assert len(gated.ops) == 1
    assert "neg, exp, mul, rms_norm" in str(gated.explain(x, gate, weight))


def test_a_function_without_an_op():
    torch._dynamo.reset()
    with pytest.raises(fo.UnsupportedError, match=r"nothing in <lambda> is fused.*same bytes"):
        fo.fuse(lambda x: torch.softmax(x, -1))(randn(2, 3))
    with pytest.raises(fo.UnsupportedError, match="it has no softmax and no norm"):
        fo.fuse(lambda x: x + 1)(randn(2, 3))
    with pytest.raises(TypeError, match="takes a function"):
        fo.fuse(3)
    with pytest.raises(TypeError, match="must be a module or a function"):
        fo.explain_graph(3)


def test_a_module_is_no_function():
    with raises(TypeError, 'torch.compile(module, backend="fusedops")'):
        fo.fuse(torch.nn.LayerNorm(16))
