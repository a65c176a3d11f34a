# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The picture of `op.explain`: its bytes are those of the report, and it is a whole SVG."""

import dataclasses
import xml.etree.ElementTree as ET

import pytest
import torch
from cases import ADD_NORM, ATTENTION, declare, randn

import fusedops as fo
from fusedops.explain.forward import explain
from fusedops.explain.picture import Bar, Picture, told_bytes
from fusedops.explain.report import CEILINGS
from fusedops.generate.target import Target

SVG = "{http://www.w3.org/2000/svg}"


def attention():
    x = randn(2, 4, 16, 64)
    operands = {
        "scale": 0.5,
        "pair_bias": randn(1, 4, 16, 64),
        "padding": torch.zeros(2, 1, 1, 64, dtype=torch.bool),
        "p": 0.1,
    }
    return declare(ATTENTION), x, operands


def add_norm():
    x, residual = randn(2, 3, 64).unbind()
    operands = {"residual": residual, "p": 0.1, **dict.fromkeys(("bias", "gamma", "beta"), x[0])}
    return declare(ADD_NORM), x, operands


class TestBytes:
    def test_of_a_softmax(self):
        op, x, operands = attention()
        told = op.explain(x, **operands)
        picture = told.picture()
        value = x.nbytes
        bias, mask = operands["pair_bias"].nbytes, operands["padding"].nbytes
        assert picture.fused == (
            Bar("x", read=value),
            Bar("pair_bias", read=bias),
            Bar("padding", read=mask),
            Bar("y", written=value),
        )
        assert picture.unfused == (
            Bar("Scale", value, value),
            Bar("Bias pair_bias", value + bias, value),
            Bar("Mask padding", value + mask, value),
            Bar("Softmax", value, value),
            Bar("Dropout", value, value + x.numel()),  # and the mask
        )

    def test_of_a_norm_the_scale_and_shift_are_part(self):
        op, x, operands = add_norm()
        names = [bar.name for bar in op.explain(x, **operands).picture().unfused]
        assert names[:3] == ["Bias bias", "Dropout", "Residual residual"]
        assert names[3] == "LayerNorm gamma, beta"

    def test_saved_values_are_no_steps(self):
        op = fo.Softmax(load=[fo.Save("scores")], store=[fo.Tap("probs"), fo.Dropout("p")])
        names = [bar.name for bar in op.explain(randn(4, 8), p=0.1).picture().unfused]
        assert names == ["Softmax", "Dropout"]

    def test_the_sum_is_that_of_the_report(self):
        calls = [(*attention(), {}), (*add_norm(), {})]
        norm = fo.LayerNorm(store=[fo.Affine("g", None)])
        calls.append((norm, randn(4, 8, 6), {"g": randn(4, 1, 1)}, {"dim": (0, 2)}))  # copies
        for op, x, operands, options in calls:
            told = op.explain(x.requires_grad_(), **operands, **options)
            assert sum(bar.bytes for bar in told.picture().fused) == told.bytes
        assert told.copies

    def test_an_empty_call_moves_nothing(self):
        picture = fo.Softmax().explain(randn(0, 8)).picture()
        assert sum(bar.bytes for bar in picture.fused) == 0
        ET.fromstring(picture.svg())


class TestProducts:
    def test_a_kernel_after_the_product(self):
        op = fo.Linear(store=[fo.Bias("b"), fo.Softcap("cap")])
        x, w, b = randn(8, 16), randn(24, 16), randn(24)
        told = op.explain(x, w, b=b, cap=5.0)
        picture = told.picture()
        assert [bar.name for bar in picture.fused] == ["x", "w", "z", "z again", "b", "y"]
        assert sum(bar.bytes for bar in picture.fused) == told.bytes
        z = 8 * 24 * 4
        assert picture.unfused == (
            Bar("x @ w.T + b", x.nbytes + w.nbytes + b.nbytes, z),
            Bar("Softcap", z, z),
        )
        assert picture.kernels == "2 kernels"

    def test_the_product_alone(self):
        picture = fo.Linear().explain(randn(8, 16), randn(24, 16)).picture()
        assert picture.kernels == "1 kernel"
        assert picture.unfused[0].bytes == sum(bar.bytes for bar in picture.fused)

    def test_two_layers(self):
        op = fo.MLP(hidden=[fo.Softcap("cap")], store=[fo.Residual("r")])
        x = randn(8, 16)
        told = op.explain(x, randn(32, 16), randn(16, 32), cap=5.0, r=x)
        names = [bar.name for bar in told.picture().unfused]
        assert names == ["1: x @ w.T", "1: Softcap", "2: x @ w.T", "2: Residual r"]
        assert sum(bar.bytes for bar in told.picture().fused) == told.bytes


class TestDrawing:
    def picture(self):
        op, x, operands = attention()
        return op.explain(x, **operands).picture()

    def test_it_is_to_scale(self):
        picture = self.picture()
        root = ET.fromstring(picture.svg())
        drawn = [
            float(rect.get("width"))
            for rect in root.iter(f"{SVG}rect")
            if rect.get("class") in ("read", "written") and rect.get("height") == "15"
        ]
        sizes = [
            size
            for bar in (*picture.fused, *picture.unfused)
            for size in (bar.read, bar.written)
            if size
        ]
        assert len(drawn) == len(sizes)
        scale = max(drawn) / max(sizes)
        for width, size in zip(drawn, sizes, strict=True):
            assert abs(width - max(size * scale, 1)) < 0.2

    def test_text_is_escaped(self):
        picture = dataclasses.replace(self.picture(), title="a < b & c")
        texts = [one.text for one in ET.fromstring(picture.svg()).iter(f"{SVG}text")]
        assert "a < b & c" in texts

    def test_the_time_and_the_percentage(self):
        op, x, operands = attention()
        told = explain(op.bind(x, operands), Target.named("sm_90"))
        told = dataclasses.replace(told, ceiling=CEILINGS["NVIDIA H200"])
        least = told.bytes / told.ceiling.bytes_per_second
        _, time, percent = told.picture(2 * least).conclusions()
        assert time.startswith("At the 4.28 TB/s")
        assert "50 percent" in percent

    def test_without_a_ceiling_there_is_no_percentage(self):
        picture = self.picture()
        (fewer,) = picture.conclusions()
        moved, apart = (sum(bar.bytes for bar in bars) for bars in (picture.fused, picture.unfused))
        assert f"moves {apart / moved:.1f} times fewer bytes" in fewer
        _, rate = dataclasses.replace(picture, measured=1e-3).conclusions()
        assert "GB/s" in rate

    def test_sizes_in_words(self):
        sizes = (0, 999, 1000, 2_621_696, 33_554_432, 1.5e11)
        words = ["0 B", "999 B", "1.00 kB", "2.62 MB", "33.6 MB", "150 GB"]
        assert [told_bytes(size) for size in sizes] == words

    def test_a_long_name_is_cut(self):
        bars = (Bar("a" * 60, 10, 10),)
        assert "…" in Picture("op", "here", "one kernel", bars, bars).svg()


class TestSaved:
    def test_a_file(self, tmp_path):
        op, x, operands = attention()
        told = op.explain(x, **operands)
        told.save(tmp_path / "call.svg")
        assert (tmp_path / "call.svg").read_text(encoding="utf-8") == told.picture().svg()

    def test_what_is_refused(self, tmp_path):
        told = fo.Softmax().explain(randn(4, 8))
        with pytest.raises(ValueError, match=r"path must end in \.svg"):
            told.save(tmp_path / "call.png")
        with pytest.raises(ValueError, match="seconds above 0"):
            told.save(tmp_path / "call.svg", measured=0)


class TestNotebooks:
    def test_a_report_shows_its_picture(self):
        op, x, operands = attention()
        told = op.explain(x, **operands)
        shown = told._repr_html_()
        assert told.picture().svg() in shown
        assert "LOAD" in shown
        assert "<details>" in shown

    def test_an_op_shows_its_declaration(self):
        op, _, _ = attention()
        shown = op._repr_html_()
        assert "fusedops.Softmax" in shown
        assert "x → Scale" in shown
        assert "pair_bias=…" in shown
        assert "over each row" not in fo.Map(load=[fo.Scale("s")])._repr_html_()

    def test_a_product_shows_its_declaration(self):
        shown = fo.MLP(store=[fo.Bias("b")])._repr_html_()
        assert "op(x, w1, w2, b=…) → y" in shown
