# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a call and a declaration may be told beside the operands."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from cases import (
    ADD_NORM,
    ATTENTION,
    LAYER_NORM,
    MAP,
    OPERATORS,
    RMS_NORM,
    SOFTMAX,
    compare,
    declare,
    named,
    parameters,
    randn,
    verify,
)
from references import Chain

import fusedops as fo
from fusedops import testing

BIASED = Chain("softmax", (("bias", "b"),))


def attention_operands(device):
    return {
        "scale": 0.5,
        "pair_bias": torch.zeros(8, device=device),
        "padding": torch.tensor(False, device=device),
        "p": 0.1,
    }


class TestWhatIsReduced:
    @pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
    @pytest.mark.parametrize("shape", [(5, 6, 7), (1, 1, 7), (6, 1)], ids=str)
    def test_dim(self, dim, shape, device):
        x, b = randn(4, 5, 6, 7, device=device), randn(*shape, device=device, seed=1)
        got = declare(BIASED)(x, b=b, dim=dim)
        assert got.shape == x.shape
        moved = [t.movedim(dim, -1) for t in (x, b.expand(x.shape), got)]
        compare(BIASED, moved[0], {"b": moved[1]}, {"y": moved[2]})
        torch.testing.assert_close(declare(BIASED).unfused(x, b=b, dim=dim), got)

    @pytest.mark.parametrize("shape", [7, (7,), [7], torch.Size([7])])
    def test_the_last_dimension_as_a_shape(self, shape, device):
        x = randn(4, 6, 7, device=device)
        operands = parameters(LAYER_NORM, 7, device=device)
        got = declare(LAYER_NORM)(x, **operands, normalized_shape=shape)
        assert torch.equal(got, declare(LAYER_NORM)(x, **operands))

    @pytest.mark.parametrize("chain", [LAYER_NORM, RMS_NORM], ids=lambda chain: chain.op)
    @pytest.mark.parametrize("shape", [(6, 7), (4, 6, 7)])
    def test_several_dimensions(self, chain, shape, device):
        x = randn(3, 4, 6, 7, device=device)
        operands = {
            name: value.view(shape)
            for name, value in parameters(chain, torch.Size(shape).numel(), device=device).items()
        }
        got = declare(chain)(x, **operands, normalized_shape=shape)
        flat = len(shape)
        compare(
            chain,
            x.flatten(-flat),
            {name: value.flatten() for name, value in operands.items()},
            {"y": got.flatten(-flat)},
        )
        unfused = declare(chain).unfused(x, **operands, normalized_shape=shape)
        torch.testing.assert_close(unfused, got)

    @pytest.mark.thorough
    @pytest.mark.parametrize("dim", [(1, 2), (-1, -2), (0, 2), (0, 1, 2), (1,), (2, 0)])
    def test_dims_of_a_norm(self, dim, device):
        """Neighbours or not: what no single step reaches is copied."""
        x = randn(3, 6, 7, device=device)
        chain = Chain("layer_norm", eps=1e-5)
        got = declare(chain)(x, dim=dim)
        rows = [d for d in range(3) if d not in [one % 3 for one in dim]]
        order = [*rows, *sorted(one % 3 for one in dim)]
        flat = [t.permute(order).flatten(len(rows)) for t in (x, got)]
        compare(chain, flat[0], {}, {"y": flat[1]})
        torch.testing.assert_close(declare(chain).unfused(x, dim=dim), got)

    def test_an_operand_broadcast_within_several_dimensions(self, device):
        """Its columns are no single step apart: copied, not misread."""
        x, g = randn(3, 6, 7, device=device), randn(7, device=device)
        chain = Chain("layer_norm", store=(("affine", "gamma", None),), eps=1e-5)
        got = declare(chain)(x, gamma=g, normalized_shape=(6, 7))
        compare(chain, x.flatten(1), {"gamma": g.repeat(6)}, {"y": got.flatten(1)})


class TestDtype:
    @pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize("of", [torch.float16, torch.float32])
    def test_the_output_has_the_dtype_that_was_asked_for(self, of, to, device):
        verify(SOFTMAX, randn(5, 100, dtype=of, device=device), {}, dtype=to)

    def test_rounding_happens_once(self, device):
        """No output is rounded to x's dtype on its way."""
        x = randn(64, 64, dtype=torch.bfloat16, device=device)
        fine = declare(SOFTMAX)(x, dtype=torch.float32)
        assert torch.equal(declare(SOFTMAX)(x, dtype=torch.float16), fine.half())
        assert torch.equal(declare(SOFTMAX)(x), fine.bfloat16())


class TestOut:
    def test_it_is_filled_and_returned(self, device):
        x, out = randn(5, 40, device=device), torch.full((5, 40), torch.nan, device=device)
        assert declare(SOFTMAX)(x, out=out) is out
        assert torch.equal(out, declare(SOFTMAX)(x))

    def test_each_output_has_its_own(self, device):
        x, residual = (randn(5, 40, device=device, seed=i) for i in range(2))
        operands = {"bias": x[0], "residual": residual, "p": 0.0, "gamma": x[1], "beta": x[2]}
        wanted = declare(ADD_NORM)(x, **operands)
        out = tuple(torch.full_like(x, torch.nan) for _ in range(2))
        result = declare(ADD_NORM)(x, **operands, out=out)
        assert all(a is b for a, b in zip(result, out, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(result, wanted, strict=True))

    def test_any_layout(self, device):
        x = randn(4, 6, 24, device=device)
        wanted = declare(SOFTMAX)(x)
        transposed = torch.full((24, 6, 4), torch.nan, device=device).permute(2, 1, 0)
        assert torch.equal(declare(SOFTMAX)(x, out=transposed), wanted)
        buffer = torch.full((4, 6, 48), torch.nan, device=device)
        declare(SOFTMAX)(x, out=buffer[..., ::2])
        assert torch.equal(buffer[..., ::2], wanted)
        assert buffer[..., 1::2].isnan().all()


class TestScalars:
    @pytest.mark.parametrize("number", [2, 2.0, np.float32(2), np.int64(2)])
    def test_kinds_of_numbers(self, number, device):
        chain = Chain("softmax", (("scale", "s"),))
        x = randn(3, 9, device=device)
        assert torch.equal(declare(chain)(x, s=number), declare(chain)(x, s=float(number)))

    @pytest.mark.thorough
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
    def test_a_scalar_may_be_a_tensor(self, dtype, device):
        chain = Chain("softmax", (("scale", "s"),))
        x = randn(3, 9, device=device)
        for shape in ((), (1,), (1, 1)):
            s = torch.full(shape, 0.75, dtype=dtype, device=device)
            assert torch.equal(declare(chain)(x, s=s), declare(chain)(x, s=0.75))

    def test_numbers_keep_the_compute_types_precision(self, device):
        chain = Chain("softmax", (("scale", "s"),))
        verify(chain, randn(3, 9, dtype=torch.float64, device=device), {"s": 1 / 3})

    def test_a_new_value_is_used(self, device):
        """Values are arguments of the kernel, not part of it."""
        chain = Chain("softmax", (("scale", "s"),))
        x = randn(3, 9, device=device)
        for s in (1.0, 0.5, -3.0, 0.0):
            verify(chain, x, {"s": s})


def test_new_rows_and_numbers_build_nothing(device, monkeypatch, tmp_path):
    """Offline and with an empty cache, what is loaded already has to do."""
    chain = Chain("softmax", (("scale", "s"), ("bias", "b")))
    vector, matrix = randn(96, device=device), randn(7, 96, device=device)
    verify(chain, randn(6, 96, device=device), {"s": 0.5, "b": vector})
    verify(chain, randn(6, 7, 96, device=device), {"s": 0.5, "b": matrix})
    monkeypatch.setenv("FUSEDOPS_OFFLINE", "1")
    monkeypatch.setenv("FUSEDOPS_CACHE_DIR", str(tmp_path))
    for shape in ((1, 96), (199, 96), (2, 3, 96)):
        verify(chain, randn(*shape, device=device), {"s": -3.0, "b": vector})
    for shape in ((2, 7, 96), (199, 7, 96), (3, 2, 7, 96)):
        verify(chain, randn(*shape, device=device), {"s": 1, "b": matrix})
    row = randn(6, 1, 96, device=device)
    verify(chain, randn(6, 7, 96, device=device), {"s": 1, "b": row})
    with pytest.raises(fo.MissingVariantError):
        declare(chain)(randn(6, 96, device=device).double(), s=1, b=vector)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_parameters_are_welcome(mode, device):
    gamma = torch.nn.Parameter(torch.ones(9, device=device))
    beta = torch.zeros(9, device=device, requires_grad=True)
    with mode():
        x = randn(3, 9, device=device)
        y = declare(LAYER_NORM)(x, gamma=gamma, beta=beta)
    assert not y.requires_grad
    compare(LAYER_NORM, x, {"gamma": gamma.detach(), "beta": beta.detach()}, {"y": y})


@pytest.mark.parametrize("op", OPERATORS)
def test_nothing_is_written_but_the_outputs(op, device):
    chain = OPERATORS[op]
    x = randn(5, 33, device=device)
    operands = parameters(chain, 33, device=device)
    before = [t.clone() for t in (x, *operands.values())]
    declare(chain)(x, **operands)
    assert all(map(torch.equal, before, (x, *operands.values())))


class TestDeclarations:
    @pytest.fixture(params=[ATTENTION, ADD_NORM, MAP, *OPERATORS.values()], ids=lambda c: c.op)
    def chain(self, request):
        return request.param

    def test_they_are_data(self, chain):
        op, twin = declare(chain), declare.__wrapped__(chain)
        assert op == twin
        assert hash(op) == hash(twin)
        assert len({op, twin}) == 1
        for again in (pickle.loads(pickle.dumps(op)), copy.deepcopy(op)):
            assert again == op
            assert repr(again) == repr(op)
        assert eval(repr(op), {"fo": fo, "torch": torch, **vars(fo)}) == op

    def test_they_differ_by_every_part(self):
        declarations = [
            fo.Softmax(),
            fo.LogSoftmax(),
            fo.Softmax(empty_row="nan"),
            fo.Softmax(load=[fo.Scale("s")]),
            fo.Softmax(store=[fo.Scale("s")]),
            fo.Softmax(load=[fo.Scale("t")]),
            fo.Softmax(load=[fo.Bias("s")]),
            fo.Softmax(load=[fo.Mask("s")]),
            fo.Softmax(load=[fo.Mask("s", keep=True)]),
            fo.Softmax(load=[fo.Causal()]),
            fo.Softmax(load=[fo.Causal(offset=1)]),
            fo.Softmax(load=[fo.Causal(align="bottom-right")]),
            fo.Softmax(load=[fo.Scale("a"), fo.Bias("b")]),
            fo.Softmax(load=[fo.Bias("b"), fo.Scale("a")]),
            fo.Map(),
            fo.Map(load=[fo.Scale("s")]),
            fo.LayerNorm(),
            fo.LayerNorm(eps=1e-6),
            fo.LayerNorm(stats=True),
            fo.RMSNorm(),
            fo.LayerNorm(load=[fo.Residual("r")]),
            fo.LayerNorm(load=[fo.Residual("r", alpha=2.0)]),
            fo.LayerNorm(load=[fo.Residual("r", save="s")]),
            fo.LayerNorm(store=[fo.Affine("g", "b")]),
            fo.LayerNorm(store=[fo.Affine("g", None)]),
            fo.LayerNorm(store=[fo.Cast(torch.float16)]),
            fo.LayerNorm(store=[fo.Cast(torch.bfloat16)]),
        ]
        assert len(set(declarations)) == len(declarations)
        assert len({repr(op) for op in declarations}) == len(declarations)

    def test_functors_are_data_too(self):
        assert fo.Mask("m") == fo.Mask("m", keep=False) != fo.Mask("m", keep=True)
        assert len({fo.Causal(), fo.Causal(offset=0), fo.Causal(offset=1)}) == 2
        assert pickle.loads(pickle.dumps(fo.Residual("r", alpha=0.5))) == fo.Residual(
            "r", alpha=0.5
        )


class TestExplain:
    def test_it_names_what_would_run(self, device):
        x = randn(2, 2, 8, 8, device=device)
        text = str(declare(ATTENTION).explain(x, **attention_operands(device)))
        for word in ("Softmax", "Scale", "Bias", "Mask", "Dropout", "pair_bias", "padding"):
            assert word in text, text

    def test_it_runs_nothing(self, device):
        x = randn(2, 2, 8, 8, device=device)
        state = torch.get_rng_state()
        with testing.count_launches() as launches:
            declare(ATTENTION).explain(x, **attention_operands(device))
        assert not launches
        assert torch.equal(torch.get_rng_state(), state)


def test_launches_are_counted_by_op(device):
    x = randn(3, 9, device=device)
    softmax, biased = declare(SOFTMAX), declare(BIASED)
    softmax(x)
    with testing.count_launches() as launches:
        softmax(x)
        softmax(x)
        biased(x, b=x)
        softmax.unfused(x)
        softmax(x[:0])
    softmax(x)
    assert launches == {softmax: 2, biased: 1}


@pytest.mark.thorough
def test_no_op_is_counted_by_the_id_of_one_that_is_gone():
    op = fo.Softmax(load=[fo.Scale("of_the_gone")])
    gone = weakref.ref(op)
    with testing.count_launches():
        del op
        gc.collect()
        assert gone() is not None  # so that no other op can have its id
    gc.collect()
    assert gone() is None


def test_backward_passes_are_counted(device):
    x = randn(3, 9, device=device).requires_grad_()
    softmax = declare(SOFTMAX)
    with testing.count_launches() as launches:
        softmax(x).backward(torch.ones_like(x))
    assert launches == {softmax: 2}


def test_forced_schedules_are_forgotten():
    x = randn(3, 9)
    with testing.force_schedule("host"):
        declare(SOFTMAX)(x)
    assert testing.last_schedule() == "host"
    with pytest.raises(ValueError, match="nonsense"), testing.force_schedule("nonsense"):
        declare(SOFTMAX)(x)
    declare(SOFTMAX)(x)


def test_results_are_fields_and_a_tuple(device):
    x = randn(3, 9, device=device)
    chain = Chain("layer_norm", (("residual", "r", 1.0, "stream"),), eps=1e-5)
    result = declare(chain)(x, r=x)
    y, stream = result
    assert y is result.y
    assert stream is result.stream
    assert named(result).keys() == {"y", "stream"}
    torch.testing.assert_close(stream, x + x)


class TestIntegersOfAnyType:
    @pytest.mark.parametrize("dim", [np.int64(-1), [np.int32(2)], range(2, 3), torch.tensor(2)])
    def test_dim_of_a_softmax(self, dim, device):
        x = randn(4, 6, 7, device=device)
        assert torch.equal(fo.Softmax()(x, dim=dim), fo.Softmax()(x))

    @pytest.mark.parametrize("dims", [range(1, 3), np.array([1, 2]), (np.int64(-2), -1)], ids=repr)
    def test_dims_of_a_norm(self, dims, device):
        x, op = randn(4, 6, 7, device=device), fo.LayerNorm()
        expected = op(x, dim=(1, 2))
        assert torch.equal(op(x, dim=dims), expected)
        torch.testing.assert_close(op.unfused(x, dim=dims), expected)

    @pytest.mark.parametrize("shape", [[np.int64(7)], np.int64(7), np.array([7])], ids=repr)
    def test_normalized_shape(self, shape, device):
        x, op = randn(4, 6, 7, device=device), fo.LayerNorm()
        assert torch.equal(op(x, normalized_shape=shape), op(x))

    def test_operands(self, device):
        x = randn(4, 7, device=device)
        counted, biased = fo.Softmax(load=[fo.Lengths("n")]), declare(BIASED)
        assert torch.equal(counted(x, n=np.int64(3)), counted(x, n=3))
        assert torch.equal(biased(x, b=np.float32(3)), biased(x, b=3.0))
        assert torch.equal(biased(x, b=2**70), biased(x, b=2.0**70))


class TestDefaultDevice:
    def test_outputs_lie_with_x(self, device):
        x, op = randn(4, 7, device=device), fo.LayerNorm(store=[fo.Dropout("p")], stats=True)
        for result in (op, op.unfused):
            with torch.device("meta"):
                got = result(x, p=0.5)
            assert {tensor.device for tensor in got} == {x.device}

    def test_the_first_seed_of_a_thread(self, device):
        from fusedops.bind import generator as runtime

        with torch.device("meta"):
            assert runtime._Scratch().seed.device.type == "cpu"


def test_a_constant_too_large_for_float_is_infinite(device):
    x = torch.tensor([[0.0, 1.0]], device=device)
    big = fo.LayerNorm(load=[fo.Residual("r", alpha=1e39)], eps=1e39)
    assert big(x, r=x).isnan().all()
    assert big.unfused(x, r=x).isnan().all()
    assert torch.equal(fo.LayerNorm(eps=1e39)(x), torch.zeros_like(x))
    assert big(x.double(), r=x.double()).isfinite().all()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda flag: fo.Softmax(lse=flag), "Softmax: lse"),
        (lambda flag: fo.Softmax(save_result=flag), "Softmax: save_result"),
        (lambda flag: fo.L2Norm(stats=flag), "L2Norm: stats"),
        (lambda flag: fo.CrossEntropy(largest=flag), "CrossEntropy: largest"),
        (lambda flag: fo.LinearCrossEntropy(correct=flag), "CrossEntropy: correct"),
        (lambda flag: fo.Mask("m", keep=flag), "Mask: keep"),
        (lambda flag: fo.Softcap("c", hardware_tanh=flag), "Softcap: hardware_tanh"),
        (lambda flag: fo.functor(hardware_tanh=flag), "functor: hardware_tanh"),
        (lambda flag: fo.nn.RMSNorm(4, unit_offset=flag), "RMSNorm: unit_offset"),
        (lambda flag: fo.Softmax()(torch.ones(1, 2), training=flag), "Softmax: training"),
        (lambda flag: fo.patch(torch.nn.ReLU(), loss=flag), "patch: loss"),
    ],
)
def test_flags_are_true_or_false(make, name):
    for flag in (0, 1, 1.0, "yes", None, np.True_):
        with pytest.raises(TypeError, match=f"{name} must be True or False, got {flag!r}"[:60]):
            make(flag)
    make(False)
