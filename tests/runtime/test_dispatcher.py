# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a call of a dispatcher does, and what it leaves to Python to refuse."""

from __future__ import annotations

import collections
import gc
import struct
import sys
import weakref

import pytest
import torch
from dispatchers import TENSOR, Affine

from fusedops import _runtime
from fusedops.bind.generator import draw


def test_a_hit_computes_what_the_miss_did(affine, x):
    b = torch.randn(6)
    for scale in (2.0, 3, -0.5):
        for _ in range(2):
            assert torch.equal(affine(x, b=b, s=scale), x * scale + b)
    assert affine.reasons == ["miss", "miss"]  # a float and an int; their values are no key
    assert (affine.dispatch.misses, affine.dispatch.hits) == (2, 4)
    assert affine.dispatch.launches == 6
    assert affine.dispatch.plans == 2
    assert _runtime.last_plan().info == "info"


def test_slow_is_given_everything(affine, x):
    b = torch.randn(6)
    affine(x, b=b, s=1.5, dim=-1, training=False)
    got, operands, options = affine.calls[0]
    assert got is x
    assert operands == {"b": b, "s": 1.5}
    assert options == {"dim": -1, "training": False}


def test_keywords_in_any_order_and_not_interned(affine, x):
    b = torch.randn(6)
    names = {"".join(["s"]): 2.0, b"b".decode(): b, "".join(["dt", "ype"]): torch.float32}
    assert torch.equal(affine(x, **names), x * 2 + b)
    assert torch.equal(affine(x, dtype=torch.float32, s=2.0, b=b), x * 2 + b)
    assert affine.dispatch.hits == 1


def test_a_parameter_is_a_tensor(affine, x):
    b = torch.nn.Parameter(torch.randn(6))
    with torch.no_grad():
        assert torch.equal(affine(x, b=b, s=1.0), x + b)


def test_one_positional_argument(affine, x):
    with pytest.raises(TypeError, match="affine takes one positional argument"):
        affine(x, x)
    with pytest.raises(TypeError, match="affine takes one positional argument"):
        affine()


def test_an_exception_of_slow_comes_through(x):
    def slow(reason, x, operands, options):
        raise LookupError("no such plan")

    dispatch = _runtime.Dispatcher("op", [], slow, draw)
    with pytest.raises(LookupError, match="no such plan"):
        dispatch(x)
    assert dispatch.plans == 0


def test_slow_may_answer_a_miss_itself(x):
    dispatch = _runtime.Dispatcher("op", [], lambda *call: "answer", draw)
    assert dispatch(x) == "answer"
    assert dispatch.plans == 0


def test_several_outputs_make_a_named_tuple(library, x):
    kernel = _runtime.load_host(library, "echo")
    result = collections.namedtuple("result", ["y", "mean"])

    def slow(reason, x, operands, options):
        outputs = [(0, 64, (15,)), (4, 16, (2, 3))]
        patches = [(0, _runtime.OUTPUT, 0), (1, _runtime.OUTPUT, 1)]
        return _runtime.Plan(kernel, bytes(128), patches, outputs, 1, 1, 0, 0, 0, 0, None)

    got = _runtime.Dispatcher("op", [], slow, draw, result)(x)
    assert type(got) is result
    assert (got.y.dtype, got.mean.dtype) == (torch.int64, torch.bfloat16)
    assert (got.y.shape, got.mean.shape) == ((15,), (2, 3))
    assert got.y[0] == got.mean.data_ptr()


def test_outputs_are_torch_memory(affine, x):
    y = affine(x)
    y.untyped_storage().resize_(0)  # memory of another library could not be
    assert y.untyped_storage().nbytes() == 0


@pytest.mark.parametrize("shape", [(0, 6), (4, 0)])
def test_no_elements_launch_nothing(affine, shape):
    x = torch.empty(shape)
    y = affine(x)
    assert y.shape == shape
    if shape[0] == 0:
        assert affine.dispatch.launches == 0


def test_without_rows_no_kernel_is_needed():
    def slow(reason, x, operands, options):
        outputs = [(2, 32, tuple(x.shape))]
        return _runtime.Plan(None, b"", [], outputs, 0, 1, 1, 1, 0, 0, None)

    dispatch = _runtime.Dispatcher("op", [], slow, draw)
    last = _runtime.last_plan()
    for _ in range(2):
        assert dispatch(torch.empty(0, 3)).shape == (0, 3)
    assert (dispatch.launches, dispatch.hits) == (0, 1)
    assert _runtime.last_plan() is last


def test_a_derived_class_is_called_as_fast():
    class Derived(_runtime.Dispatcher):
        pass

    class Wrapped(_runtime.Dispatcher):
        def __call__(self, x, /, **keywords):
            return "wrapped"

    have_vectorcall = 1 << 11  # Py_TPFLAGS_HAVE_VECTORCALL
    slow = lambda reason, x, operands, options: operands  # noqa: E731
    for kind, answer in ((Derived, {"b": 1}), (Wrapped, "wrapped")):
        assert kind("op", [("b", TENSOR)], slow, draw)(torch.ones(1), b=1) == answer
    assert Derived.__flags__ & have_vectorcall
    assert not Wrapped.__flags__ & have_vectorcall


def test_a_plan_can_be_made_again_after_some_calls(library, x):
    made = []

    def slow(reason, x, operands, options):
        affine = Affine(library)
        made.append(affine.slow(reason, x, operands, options))
        last = made[-1] if len(made) > 2 else None
        if last:
            return last
        words = struct.pack("<QQQqff", 0, 0, 0, x.shape[-1], float(len(made)), 0.0)
        patches = [(0, _runtime.POINTER, 0), (2, _runtime.OUTPUT, 0)]
        outputs = [(2, 32, tuple(x.shape))]
        return _runtime.Plan(
            affine.kernel, words, patches, outputs, x.shape[0], 8, 0, 0, 0, 0, None, calls=3
        )

    dispatch = _runtime.Dispatcher("affine", [], slow, draw)
    results = [dispatch(x) for _ in range(20)]
    # The first plan serves the call that made it and two more, so does the second; the third stays.
    scales = [1.0] * 3 + [2.0] * 3 + [1.0] * 14
    assert len(made) == 3
    for result, scale in zip(results, scales, strict=True):
        assert torch.equal(result, x * scale)
    assert (dispatch.hits, dispatch.misses) == (17, 3)


def test_plans_can_be_forgotten(affine, x):
    affine(x)
    affine.dispatch.clear()
    assert affine.dispatch.plans == 0
    affine(x)
    assert affine.dispatch.misses == 2


@pytest.mark.thorough
def test_a_dispatcher_in_a_cycle_is_collected(library):
    owner = Affine(library)
    owner(torch.ones(2, 2))
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_a_call_leaks_no_reference(affine, x):
    b = torch.randn(6)
    affine(x, b=b, s=1.0)
    affine.calls.clear()
    before = sys.getrefcount(x), sys.getrefcount(b)
    for _ in range(100):
        affine(x, b=b, s=1.0)
        affine(x, b=b, unknown=1)
        affine.calls.clear()
    assert (sys.getrefcount(x), sys.getrefcount(b)) == before
    y, fresh = affine(x, b=b, s=1.0), torch.empty(1)
    assert sys.getrefcount(y) == sys.getrefcount(fresh)


BAD = {
    "unknown name": dict(unknown=1.0),
    "unknown name among known": dict(s=1.0, unknown=1.0),
    "number for a tensor": dict(b=1.0),
    "tensor for a number": dict(s=torch.tensor(1.0)),
    "None for an operand": dict(b=None),
    "bool for a number": dict(s=True),
    "string for a number": dict(s="1"),
    "number beyond 64 bits": dict(s=2**63),
    "negative p": dict(p=-0.1),
    "p above 1": dict(p=1.5),
    "p above 1, not training": dict(p=1.5, training=False),
    "p NaN": dict(p=float("nan")),
    "p a tensor": dict(p=torch.tensor(0.5)),
    "training 1": dict(training=1),
    "training None": dict(training=None),
    "dim a float": dict(dim=1.0),
    "dim a bool": dict(dim=True),
    "dim a string": dict(dim="1"),
    "dim of floats": dict(dim=(0, 1.0)),
    "dim beyond 64 bits": dict(dim=2**64),
    "normalized_shape a string": dict(normalized_shape="6"),
    "dtype a string": dict(dtype="float32"),
    "dtype a type": dict(dtype=float),
    "generator a seed": dict(generator=5),
    "generator of one": dict(generator=(5,)),
    "generator of three": dict(generator=(5, 0, 0)),
    "generator a list": dict(generator=[5, 0]),
    "generator of floats": dict(generator=(5, 0.0)),
    "generator of bools": dict(generator=(True, 0)),
    "generator of None": dict(generator=(None, 0)),
    "generator before the first": dict(generator=(0, -1)),
    "generator beyond 48 bits": dict(generator=(0, 2**48)),
    "generator in memory before the first": dict(generator=torch.tensor([0, -1])),
    "generator above 64 bits": dict(generator=(2**64, 0)),
    "generator below 64 bits": dict(generator=(0, -(2**63) - 1)),
    "description for a tensor": dict(b=(torch.float32, (6,))),
    "out a number": dict(out=1.0),
    "out empty": dict(out=()),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_go_to_python(affine, x, name):
    assert affine(x, **BAD[name]) == "arguments"
    _, operands, options = affine.calls[0]
    assert {**operands, **options} == BAD[name]
    assert affine.dispatch.launches == 0


def test_out_is_written_and_returned(affine, x):
    b = torch.randn(6)
    for _ in range(2):
        out = torch.full((4, 6), float("nan"))
        assert affine(x, b=b, s=2.0, out=out) is out
        assert torch.equal(out, x * 2 + b)
    one = (torch.empty(4, 6),)
    assert affine(x, b=b, s=2.0, out=one) is one[0]
    assert affine.dispatch.hits == 2


def test_out_must_fit_the_outputs(affine, x):
    with pytest.raises(ValueError, match="affine: out must hold 1 tensor,"):
        affine(x, out=(torch.empty(4, 6), torch.empty(4, 6)))


def test_overlap_is_turned_away(affine):
    base = torch.zeros(100)
    x, b = base[:24].reshape(4, 6), base[60:66]
    apart = base[24:48].reshape(4, 6)  # begins where x ends
    assert affine(x, b=b, out=apart) is apart
    overlapping = {
        "x itself": x,
        "the end of x": base[23:47].reshape(4, 6),
        "a row that b starts in": base[37:61].reshape(4, 6),
        "a strided view around b": base[50:98].reshape(4, 12)[:, ::2],
        "itself": torch.zeros(6).expand(4, 6),
    }
    for name, out in overlapping.items():
        assert affine(x, b=b, out=out) == "overlap", name
    assert affine.dispatch.launches == 1


def test_overlap_is_found_when_the_plan_is_known(affine):
    base = torch.zeros(100)
    x = base[:24].reshape(4, 6)
    affine(x, out=base[24:48].reshape(4, 6))
    affine(x, out=base[32:56].reshape(4, 6))
    assert affine.dispatch.hits == 1
    assert affine(x, out=base[16:40].reshape(4, 6)) == "overlap"


def test_two_outs_that_overlap_are_turned_away(affine, x):
    base = torch.empty(40)
    outs = base[:24].reshape(4, 6), base[16:40].reshape(4, 6)
    assert affine(x, out=outs) == "overlap"


def test_a_result_type_must_be_a_named_tuple():
    with pytest.raises(TypeError, match="must be a namedtuple type, tuple or None"):
        _runtime.Dispatcher("op", [], print, draw, list)


def test_a_plain_tuple_is_returned_even_of_one(library, x):
    kernel = _runtime.load_host(library, "count")
    for number in (1, 3):

        def slow(reason, x, operands, options, number=number):
            outputs = [(0, 64, (1,))] * number
            return _runtime.Plan(kernel, bytes(8), [], outputs, 0, 1, 0, 0, 0, 0, None)

        dispatch = _runtime.Dispatcher("op", [], slow, draw, tuple)
        for _ in range(2):
            got = dispatch(x)
            assert type(got) is tuple
            assert len(got) == number
            assert sys.getrefcount(got) == 2
