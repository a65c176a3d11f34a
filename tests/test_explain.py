# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What `op.explain` says is what a call does; for a GPU too, without one."""

import re

import pytest
import torch
from cases import ADD_NORM, ATTENTION, LAYER_NORM, SOFTMAX, declare, parameters, randn

import fusedops as fo
from fusedops import jit, testing
from fusedops.explain import report as explanation
from fusedops.explain.forward import explain
from fusedops.generate.target import Target
from fusedops.plan.forward import describe

H200 = Target.named("sm_90")


def on_gpu(op, x, **arguments):
    """As if the tensors were on a GPU."""
    return explain(op.bind(x, arguments), H200)


def frozen(operands):
    """The operands without their gradients."""
    return {k: v.detach() if isinstance(v, torch.Tensor) else v for k, v in operands.items()}


def attention(batch=2, heads=4, queries=16, keys=64, dtype=torch.float32):
    x = randn(batch, heads, queries, keys, dtype=dtype)
    return x, {
        "scale": 0.5,
        "pair_bias": randn(1, heads, queries, keys, dtype=dtype),
        "padding": torch.zeros(batch, 1, 1, keys, dtype=torch.bool),
        "p": 0.1,
    }


class TestWhatIsSaid:
    def test_the_chains_and_the_operands(self):
        x, operands = attention()
        op = declare(ATTENTION)
        told = op.explain(x, **operands)
        assert (told.load, told.store) == (op.load, op.store)
        assert list(told.operands) == ["x", "pair_bias", "padding"]
        assert told.numbers == {"scale": 0.5, "p": 0.1}
        assert list(told.outputs) == ["y"]
        assert (told.rows, told.columns, told.compute) == (128, 64, torch.float32)
        text = str(told)
        for word in ("LOAD", "STORE", *map(repr, (*op.load, *op.store)), "pair_bias", "slot 0"):
            assert word in text

    def test_every_line_has_its_label(self):
        x, operands = attention()
        for line in str(declare(ATTENTION).explain(x, **operands)).splitlines()[1:]:
            assert re.match(r"  \S.*?  +\S", line), line

    def test_a_dropout_that_drops_nothing(self):
        x, operands = attention()
        op = declare(ATTENTION)
        for told in (
            op.explain(x, **{**operands, "p": 0.0}),
            op.explain(x, **operands, training=False),
        ):
            assert told.left_out == (fo.Dropout("p"),)
            assert told.store == told.dropouts == ()
            assert "left out" in str(told)

    def test_masks_that_act_later_than_they_stand(self):
        x, m = randn(4, 8), torch.zeros(8, dtype=torch.bool)
        mask, scale = fo.Mask("m"), fo.Scale("s")
        assert not fo.Softmax(load=[scale, mask]).explain(x, m=m, s=2.0).notes
        assert "last" in str(fo.Softmax(load=[mask, scale]).explain(x, m=m, s=2.0))

    def test_gradients(self):
        x, operands = attention()
        op = declare(ATTENTION)
        assert "kept" not in str(op.explain(x, **operands))
        operands["pair_bias"].requires_grad_()
        with torch.no_grad():
            assert not op.explain(x, **operands).kept
        told = op.explain(x.requires_grad_(), **operands)
        own = {kept.name: (kept.bytes, kept.own) for kept in told.kept}
        assert own == {
            "statistics": (8 * 128, 8 * 128),
            "x": (x.nbytes, 0),
            "pair_bias": (operands["pair_bias"].nbytes, 0),
            "padding": (operands["padding"].nbytes, 0),
        }
        assert "gradients of x, pair_bias by one kernel" in told.backward
        assert told.bytes == op.explain(x.detach(), **frozen(operands)).bytes + 8 * 128
        for word in ("statistics: 1024 bytes, 2 numbers in float32 a row", told.backward):
            assert word in str(told)

    def test_gradients_on_a_gpu(self):
        x, v = randn(512, 1024, dtype=torch.float16), randn(1024, dtype=torch.float16)
        leaves = {"bias": v, "residual": x.clone(), "gamma": v.clone(), "beta": v.clone()}
        leaves = {name: tensor.requires_grad_() for name, tensor in leaves.items()}
        told = on_gpu(declare(ADD_NORM), x.requires_grad_(), p=0.1, **leaves)
        assert [kept.name for kept in told.kept] == ["statistics", "gamma", "stream"]
        assert "gradients of x, bias, residual, gamma, beta by two kernels" in told.backward
        assert (
            "gamma: summed over rows in shared memory, the parts added up by the second"
            in told.backward
        )

    def test_gradients_that_a_call_refuses(self):
        x = randn(4, 8).requires_grad_()
        told = declare(SOFTMAX).explain(x, out=torch.empty(4, 8))
        assert not told.kept
        assert "raises: out=" in str(told)

    def test_gradients_in_other_dimensions(self):
        """Rows that are copied, and rows that share an operand without being neighbours."""
        x = randn(3, 4, 5).requires_grad_()
        told = fo.LayerNorm().explain(x, dim=(0, 2))
        assert "on dense copies" in told.backward
        s = randn(3, 1, 8).requires_grad_()
        told = fo.Softmax(load=[fo.Scale("a"), fo.Bias("b")]).explain(
            randn(3, 4, 8), a=s, b=randn(1, 4, 8).requires_grad_()
        )
        assert re.search(r"[ab]: written whole and summed by torch", told.backward)

    def test_nothing_to_launch(self):
        for shape in ((0, 8), (8, 0)):
            told = declare(SOFTMAX).explain(randn(*shape))
            assert told.schedule is told.cached is told.tile is None
            assert told.bytes == 0
            assert "nothing is launched" in str(told)

    def test_no_device_for_it(self):
        with pytest.raises(fo.UnsupportedError, match="meta"):
            declare(SOFTMAX).explain(randn(4, 8).to("meta"))


class TestRows:
    def test_a_shared_operand_moves_its_dimension_inwards(self):
        x, operands = attention(batch=3, heads=8, queries=128, keys=512)
        order, why = declare(ATTENTION).explain(x, **operands).visited
        assert order == (1, 2, 0)
        assert "'pair_bias' is shared along dimension 0" in why

    def test_a_small_one_does_not(self):
        x, operands = attention()
        order, why = declare(ATTENTION).explain(x, **operands).visited
        assert order == (0, 1, 2)
        assert "order of x's dimensions" in why

    def test_how_operands_lie(self):
        x = randn(4, 6, 32)
        op = fo.Softmax(load=[fo.Bias("a"), fo.Bias("b"), fo.Bias("c"), fo.Bias("d")])
        told = op.explain(
            x, a=randn(32), b=randn(6, 1), c=randn(4, 6, 64)[..., ::2], d=randn(4, 1, 32)
        )
        lies = {name: place.lies for name, place in told.operands.items()}
        assert lies["a"] == "contiguous columns, no row dimensions: shared by all rows"
        assert lies["b"] == "one value a row, shared along x's dimension 0"
        assert lies["c"] == "strided columns, 2 elements apart"
        assert lies["d"] == "contiguous columns, shared along x's dimension 1"


class TestCopies:
    def test_none_where_the_reduced_dimensions_merge(self):
        x = randn(3, 6, 7)
        assert fo.LayerNorm().explain(x, normalized_shape=(6, 7)).copies == ()

    def test_an_operand(self):
        op = fo.LayerNorm(store=[fo.Affine("g")])
        told = op.explain(randn(3, 6, 7), g=randn(7), normalized_shape=(6, 7))
        assert len(told.copies) == 1
        assert "'g'" in told.copies[0]
        assert "(1, 6, 7)" in told.copies[0]
        # x and y once each; gamma is read, written as 42 values, and read again.
        assert told.bytes == 4 * (2 * 126 + 7 + 42 + 42)

    def test_x_and_the_output(self):
        told = fo.LayerNorm().explain(randn(3, 6, 7), dim=(0, 2))
        assert [text.split("'")[1] for text in told.copies] == ["x", "y"]
        assert told.rows == 6
        assert told.bytes == 4 * 126 * (2 + 2 + 2)


class TestOnAGpu:
    def test_the_tile(self):
        told = on_gpu(declare(SOFTMAX), randn(8, 4096, dtype=torch.float16))
        tile = told.tile
        assert told.schedule == tile.storage == "register"
        assert tile.threads * tile.packs * tile.width * tile.chunks == 4096
        assert tile.extent in told.why

    @pytest.mark.parametrize(
        ("columns", "schedule"), [(1000, "register"), (32768, "cluster"), (1 << 20, "streaming")]
    )
    def test_the_schedule(self, columns, schedule):
        told = on_gpu(declare(SOFTMAX), torch.empty(2, columns))
        assert told.schedule == schedule
        assert ("2 blocks of a cluster" in told.why) == (schedule == "cluster")
        assert ("shared memory" in told.why) == (schedule == "streaming")
        assert ("twice" in str(told)) == (schedule == "streaming")

    @pytest.mark.parametrize(
        ("columns", "served"),
        [
            (1000, "rows of 769 to 1024 columns that packs of 8 divide"),
            (999, "rows of 897 to 1024 columns that are odd"),
            (1024, "rows of 1024 columns alone"),
        ],
    )
    def test_the_bucket(self, columns, served):
        x = torch.zeros(64, columns, dtype=torch.float16, requires_grad=True)
        told = on_gpu(fo.Softmax(), x)
        assert f"the kernel serves {served};" in told.why
        assert "the kernel serves rows of " in told.backward

    def test_a_forced_schedule(self):
        with testing.force_schedule("streaming"):
            told = on_gpu(declare(SOFTMAX), randn(8, 64))
        assert told.schedule == "streaming"
        assert "forced" in told.why

    def test_what_limits_the_width(self):
        x = randn(6, 64, dtype=torch.float16)
        op = fo.Softmax(load=[fo.Bias(name) for name in "abcdef"])
        base = randn(6, 64 + 8, dtype=torch.float16)
        places = on_gpu(
            op,
            x,
            a=base[:, :64],
            b=base[:, 2:66],
            c=randn(6, 70, dtype=torch.float16)[:, :64],
            d=randn(64),
            e=randn(6, 1),
            f=randn(64, 6).t(),
        ).operands
        assert {name: place.width for name, place in places.items()} == {
            "x": 8, "a": 8, "b": 2, "c": 2, "d": 4, "e": 1, "f": 1,
        }  # fmt: skip
        for name, limit in {
            "x": "the pack",
            "b": "pointer is aligned to 4 bytes",
            "c": "a row stride is 70",
            "d": "widest access",
            "e": "one value",
            "f": "not contiguous",
        }.items():
            assert limit in places[name].limit, name

    def test_the_time_at_the_ceiling(self, monkeypatch):
        x = randn(64, 1024, dtype=torch.float16)
        told = on_gpu(declare(SOFTMAX), x)
        assert told.bytes == 2 * x.numel() * 2
        assert told.seconds is None
        assert "no ceiling measured" in str(told)
        known = explanation.Ceiling(1e12, "a test")
        monkeypatch.setitem(explanation.CEILINGS, told.device, known)
        told = on_gpu(declare(SOFTMAX), x)
        assert told.seconds == told.bytes / 1e12
        assert "0.3 us at 1.00 TB/s (a test)" in str(told)

    @pytest.mark.gpu
    def test_the_real_device(self):
        told = declare(SOFTMAX).explain(randn(64, 1024, device="cuda"))
        assert told.device == torch.cuda.get_device_name()
        assert told.arch == "sm_{}{}".format(*torch.cuda.get_device_capability())


class TestBytes:
    def test_every_element_that_is_touched_once(self):
        x, operands = attention()
        told = declare(ATTENTION).explain(x, **operands)
        assert told.operands["pair_bias"].bytes == 4 * 4 * 16 * 64
        assert told.operands["padding"].bytes == 2 * 64
        assert told.bytes == 2 * 4 * x.numel() + 4 * 4 * 16 * 64 + 2 * 64

    def test_expanded_and_overlapping_tensors(self):
        op = fo.Softmax(load=[fo.Bias("a"), fo.Bias("b")])
        a, b = randn(1, 8).expand(5, 8), randn(12).as_strided((5, 8), (1, 1))
        places = op.explain(randn(5, 8), a=a, b=b).operands
        assert (places["a"].bytes, places["b"].bytes) == (32, 48)

    def test_all_outputs(self):
        x = randn(5, 40)
        operands = {"bias": x[0], "residual": x.half(), "p": 0.0, "gamma": x[1], "beta": x[2]}
        told = declare(ADD_NORM).explain(x, **operands, dtype=torch.float64)
        assert {name: place.bytes for name, place in told.outputs.items()} == {
            "y": 8 * 200,
            "stream": 2 * 200,
        }

    def test_masks_from_indices_make_it_a_bound(self):
        for mask in (fo.Causal(), fo.Window(3), fo.Window(None, 2)):
            assert "upper bound" in str(fo.Softmax(load=[mask]).explain(randn(8, 8)))

    def test_alibi_reads_its_slopes_alone(self):
        told = fo.Softmax(load=[fo.Alibi("slopes")]).explain(
            randn(2, 4, 8, 8), slopes=randn(4, 1, 1)
        )
        assert told.operands["slopes"].lies.startswith("one value a row")
        assert told.bytes == 2 * 4 * 512 + 4 * 4
        assert "upper bound" not in str(told)


class TestVariant:
    def test_from_nothing_to_loaded(self, device, tmp_path, monkeypatch):
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setattr("fusedops.generate.variant._kernels", {})
        x = randn(3, 9, device=device)
        # A declaration of this test alone, so that no plan and no kernel is there already.
        op = fo.RMSNorm(store=[fo.Scale("only_here"), fo.Cast(torch.bfloat16)])
        told = op.explain(x, only_here=2.0)
        assert told.cached == "to be built"
        assert ("NVRTC" if device == "cuda" else "compiler") in told.variant
        op(x, only_here=2.0)
        told = op.explain(x, only_here=2.0)
        assert told.cached == "loaded"
        monkeypatch.setattr("fusedops.generate.variant._kernels", {})
        told = op.explain(x, only_here=2.0)
        assert told.cached == "on disk"
        assert str(tmp_path) in told.variant

    def test_room_that_a_kernel_gave_up(self, monkeypatch, tmp_path):
        """A LayerNorm of 64 values a thread has no room for as many blocks as others have."""
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
        x = torch.empty(2, 65536)
        op = declare(LAYER_NORM)
        operands = parameters(LAYER_NORM, 65536)
        assert not on_gpu(op, x, **operands).notes
        describe(op.bind(x, operands), H200).variant.build()
        (note,) = on_gpu(op, x, **operands).notes
        assert re.fullmatch(r"room for \d blocks a multi.*: registers spill with room for \d", note)

    def test_it_builds_nothing(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(jit, "build", None)
        x = randn(3, 9)
        declare(LAYER_NORM).explain(x, **parameters(LAYER_NORM, 9))
        on_gpu(declare(LAYER_NORM), x, **parameters(LAYER_NORM, 9))
        assert not list(tmp_path.iterdir())

    def test_offline_and_without_a_compiler(self, monkeypatch, tmp_path):
        monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr("fusedops.generate.variant._kernels", {})
        for name, value in (("CXX", "no-such-compiler"), ("FUSEDOPS_OFFLINE", "1")):
            monkeypatch.setenv(name, value)
            assert declare(SOFTMAX).explain(randn(3, 9)).cached == "to be built"

    def test_the_generator_stays_where_it_is(self, device):
        generator = torch.Generator(device).manual_seed(3)
        state = generator.get_state()
        x, operands = attention()
        operands = {k: v.to(device) if torch.is_tensor(v) else v for k, v in operands.items()}
        declare(ATTENTION).explain(x.to(device), **operands, generator=generator)
        assert torch.equal(generator.get_state(), state)


def test_a_kernel_with_more_row_dimensions_is_loaded(device):
    op = fo.LayerNorm(load=[fo.Bias("b"), fo.Cast(torch.bfloat16), fo.Scale("s")])
    x, b = randn(2, 3, 8, device=device), randn(2, 1, 8, device=device)
    op(x, b=b, s=2.0)
    text = str(op.explain(x[:1], b=b[:1], s=2.0))
    launched = op.explain(x[:1], b=b[:1], s=2.0)
    op(x[:1], b=b[:1], s=2.0)
    assert launched.cached == "loaded", text
    assert op.explain(x[:1], b=b[:1], s=2.0) == launched
