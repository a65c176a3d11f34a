# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of operands in every broadcast pattern, dtype and layout, and of any upstream."""

import pytest
import torch
from cases import (
    ADD_NORM,
    ATTENTION,
    LAYER_NORM,
    SOFTMAX,
    compare_gradients,
    declare,
    gradients_of,
    parameters,
    randn,
    thorough,
    upstream_of,
    verify_gradients,
)
from references import Chain
from test_forward import LAYOUTS, add_norm_case, attention_case

import fusedops as fo
from fusedops.generate.target import Target
from fusedops.run.gradient import Gradient, described

SHAPE = (4, 3, 6, 40)

PATTERNS = {
    "full": SHAPE,
    "column": (40,),
    "row": (4, 3, 6, 1),
    "scalar": (),
    "shared over batch": (1, 3, 6, 40),
    "shared over heads": (4, 1, 6, 40),
    "shared over queries": (4, 3, 1, 40),
    "a head": (3, 1, 1),
    "a batch": (4, 1, 1, 1),
    "one column each query": (6, 1),
    "shared over batch and queries": (3, 1, 40),
    "one element": (1, 1),
}

#: Every kind of functor that takes a value, on either side.
VALUES = Chain(
    "layer_norm",
    load=(("scale", "a"), ("residual", "b", "c", None)),
    store=(("affine", "d", "e"),),
    eps=1e-5,
)


def patterned(names, device, shape=SHAPE, dtype=torch.float32):
    """x, and operands a, b, ... of the shapes that the patterns name."""
    x = randn(*shape, dtype=dtype, device=device, seed=1)
    return x, {
        letter: randn(*PATTERNS[name], dtype=dtype, device=device, seed=2 + i)
        for i, (letter, name) in enumerate(zip("abcde", names, strict=True))
    }


@pytest.mark.thorough
@pytest.mark.parametrize("turn", [0, *thorough(5, 10)])
def test_several_patterns_at_once(turn, device):
    names = list(PATTERNS) * 2
    verify_gradients(VALUES, *patterned(names[turn : turn + 5], device))


@pytest.mark.gpu
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("side", ["load", "store"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax", "layer_norm", "rms_norm"])
def test_each_pattern(op, side, pattern):
    for step in (("scale", "a"), ("bias", "a")):
        chain = Chain(op, **{side: (step,)}, eps=1e-5 if op.endswith("norm") else 0.0)
        x, operands = patterned([pattern] * 5, "cuda")
        verify_gradients(chain, x, {"a": operands["a"]})


@pytest.mark.thorough
@pytest.mark.parametrize("pattern", ["column", "a head", "scalar", "shared over heads"])
def test_over_many_rows(pattern, device):
    """So many that the rows are cut into slices, whose sums are added up at last."""
    shape = (300, 3, 6, 40)
    operand = tuple(300 if size == 4 else size for size in PATTERNS[pattern])
    chain = Chain("layer_norm", store=(("bias", "b"),), eps=1e-5)
    b = randn(*operand, device=device, seed=2)
    verify_gradients(chain, randn(*shape, device=device, seed=1), {"b": b})


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [(1, 2, 64, 1024), (2, 2, 64, 1024), (64, 2, 256, 512), (3, 1, 1000, 260)],
    ids=str,
)
def test_a_pair_bias_shared_over_the_batch(shape):
    """As attention has it: large enough that the order of the rows follows the sharing."""
    verify_gradients(ATTENTION, *attention_case(torch.float16, "cuda", shape))


@pytest.mark.thorough
def test_one_operand_named_twice(device):
    """Its gradient is the sum of those of its uses."""
    chain = Chain(
        "layer_norm",
        load=(("scale", "w"), ("bias", "w")),
        store=(("affine", "w", None), ("residual", "r", 0.5, None)),
        eps=1e-5,
    )
    x, r = (randn(5, 7, 40, device=device, seed=i) for i in range(2))
    for shape in ((40,), (7, 1), (), (5, 7, 40)):
        verify_gradients(chain, x, {"w": randn(*shape, device=device, seed=3), "r": r})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "types",
    [
        ("float16", "float32", "float64", "bfloat16"),
        pytest.param(("float32", "float16", "bfloat16", "float16"), marks=pytest.mark.gpu),
        pytest.param(("bfloat16", "float32", "float32", "float32"), marks=pytest.mark.gpu),
        pytest.param(("float64", "float32", "float16", "float32"), marks=pytest.mark.gpu),
    ],
    ids="-".join,
)
def test_each_operand_has_its_own_dtype(types, device):
    x_type, residual, vector, out = (getattr(torch, name) for name in types)
    x, operands = add_norm_case(x_type, device, columns=130)
    operands["residual"] = operands["residual"].to(residual)
    for name in ("bias", "gamma"):
        operands[name] = operands[name].to(vector)
    verify_gradients(ADD_NORM, x, operands, dtype=out)


UPSTREAM = {
    "transposed": lambda t: t.transpose(-1, -2).contiguous().transpose(-1, -2),
    "every other": lambda t: torch.stack([t, t], -1)[..., 0],
    "one row": lambda t: t[:1].expand_as(t),
    "one column": lambda t: t[..., :1].expand_as(t),
    "one element": lambda t: t.flatten()[0].expand_as(t),
    "misaligned": lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view_as(t),
}


@pytest.mark.thorough
@pytest.mark.parametrize("layout", UPSTREAM)
def test_upstream_of_every_layout(layout, device):
    x, operands = add_norm_case(torch.float32, device)
    upstream = upstream_of(ADD_NORM, x, operands)
    both = {name: UPSTREAM[layout](gradient) for name, gradient in upstream.items()}
    verify_gradients(ADD_NORM, x, operands, both)


@pytest.mark.parametrize("layout", ["one row", "one column", "one element"])
def test_expanded_upstream_of_a_softmax(layout, device):
    """Where it is constant within a row, the gradient is nothing but roundings."""
    x = randn(9, 65, device=device)
    dy = {"y": UPSTREAM[layout](randn(9, 65, device=device, seed=1))}
    verify_gradients(SOFTMAX, x, {}, dy)


@pytest.mark.parametrize("used", [("y",), ("stream",)], ids="-".join)
def test_upstream_of_one_output_alone(used, device):
    x, operands = add_norm_case(torch.float32, device)
    upstream = upstream_of(ADD_NORM, x, operands)
    chosen = {name: upstream[name] for name in used}
    wanted = ["x", "bias", "residual", *(("gamma", "beta") if used == ("y",) else ())]
    verify_gradients(ADD_NORM, x, operands, chosen, wanted=wanted)


def test_what_the_stream_alone_does_not_reach(device):
    """Gamma and beta take no part in the stream: their gradients are zeros."""
    x, operands = add_norm_case(torch.float32, device)
    upstream = upstream_of(ADD_NORM, x, operands)
    _, got = gradients_of(declare(ADD_NORM), x, operands, {"stream": upstream["stream"]})
    assert not got["gamma"].any()
    assert not got["beta"].any()


@pytest.mark.thorough
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("which", ["x", *thorough("b")])
def test_layouts_of_what_is_read_again(layout, which, device):
    chain = Chain("softmax", (("scale", "b"),))
    tensors = {"x": randn(4, 6, 24, device=device), "b": randn(4, 6, 24, device=device, seed=1)}
    tensors[which] = LAYOUTS[layout](tensors[which])
    verify_gradients(chain, tensors["x"], {"b": tensors["b"]})


@pytest.mark.thorough
@pytest.mark.parametrize("dim", [0, *thorough(1, -2)])
def test_another_dimension(dim, device):
    chain = Chain("softmax", (("scale", "s"), ("mask", "m")))
    x, dy = (randn(5, 6, 7, device=device, seed=i) for i in range(2))
    operands = {
        "s": randn(6, 1, device=device, seed=3),
        "m": randn(5, 1, 7, device=device, seed=4) > 0.8,
    }
    outputs, got = gradients_of(declare(chain), x, operands, {"y": dy}, dim=dim)

    def moved(tensor):
        wide = tensor[(None,) * (3 - tensor.dim())]
        return wide.movedim(dim, -1)

    compare_gradients(
        chain,
        moved(x),
        {name: moved(value) for name, value in operands.items()},
        {"y": moved(dy)},
        {"y": moved(outputs["y"])},
        {"x": moved(got["x"]), "s": moved(got["s"][None])},
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dims", "options"),
    [
        ((2, 3), {"normalized_shape": (5, 8)}),
        ((1, 2, 3), {"dim": (1, 2, 3)}),
        ((0, 1, 2, 3), {"normalized_shape": (3, 4, 5, 8)}),
        ((0, 2), {"dim": (0, 2)}),
    ],
    ids=str,
)
def test_norms_over_several_dimensions(dims, options, device):
    x, dy = (randn(3, 4, 5, 8, device=device, seed=i) for i in range(2))
    shape = [size if dim in dims else 1 for dim, size in enumerate(x.shape)]
    operands = {
        name: randn(*shape, device=device, seed=i) for i, name in enumerate(("gamma", "beta"))
    }
    outputs, got = gradients_of(declare(LAYER_NORM), x, operands, {"y": dy}, **options)
    rows = [dim for dim in range(4) if dim not in dims]

    def flat(tensor):
        return tensor.permute(*rows, *dims).flatten(len(rows))

    compare_gradients(
        LAYER_NORM,
        flat(x),
        {name: flat(value) for name, value in operands.items()},
        {"y": flat(dy)},
        {"y": flat(outputs["y"])},
        {name: flat(value) for name, value in got.items()},
    )


@pytest.mark.parametrize("rank", [1, 2, 5, 6])
def test_ranks_of_x(rank, device):
    x = randn(*(2, 1, 3, 2, 1, 40)[-rank:], device=device)
    verify_gradients(LAYER_NORM, x, parameters(LAYER_NORM, 40, device=device))


@pytest.mark.thorough
def test_numbers_and_flags_have_none(device):
    """Python numbers, and tensors that do not float."""
    op = fo.Softmax(load=[fo.Scale("s"), fo.Lengths("n"), fo.Mask("m")], store=[fo.Dropout("p")])
    x = randn(3, 8, device=device).requires_grad_()
    n, m = torch.tensor([[8], [3], [0]], device=device), torch.zeros(8, device=device) > 0
    y = op(x, s=2.0, n=n, m=m, p=0.5)
    y.backward(torch.ones_like(y))
    assert x.grad.shape == x.shape


def test_describing_a_gradient_changes_nothing():
    """That an operand's gradient is left to be summed is said of the call, until a plan is made."""
    op = fo.LayerNorm(load=[fo.Bias("a"), fo.Bias("b")])
    shapes = ((4, 3, 6, 40), (1, 3, 6, 40), (4, 1, 6, 40))
    x, a, b = (torch.empty(shape, device="meta") for shape in shapes)
    gradient = Gradient(op, frozenset({"a", "b"}), frozenset())
    call = described(op.bind(x, {"a": a, "b": b}), gradient)
    for arch in ("sm_90", "x86-64-v3"):
        assert gradient.describe(*call, Target.named(arch)).results.loose
    assert not gradient.loose
