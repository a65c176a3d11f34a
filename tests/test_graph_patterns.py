# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What the backend "fusedops" fuses: each pattern's declaration, outputs and gradients."""

import pytest
import torch
from captured import assert_near, compiled, held, trained
from cases import randn
from references import check
from torch import nn
from torch.nn import functional

COLUMNS = 24
X = randn(2, 3, 5, COLUMNS, seed=1)
BIAS = randn(3, 5, COLUMNS, seed=2)
VECTOR = randn(COLUMNS, seed=3)
OTHER = randn(2, 3, 5, COLUMNS, seed=4)
FLAGS = randn(2, 1, 5, COLUMNS, seed=5) > 0.5

PATTERNS = {}


def pattern(*inputs, wanted):
    """Register a program: its inputs, and the declaration that it becomes."""

    def register(program):
        PATTERNS[program.__name__] = program, inputs, wanted
        return program

    return register


PLAIN = "alpha=0.5, save=None"
NAN = "empty_row='nan'"
STATS = "stats=False"


@pattern(
    X,
    BIAS,
    FLAGS,
    wanted=f"Softmax(load=[Scale(scale='scale'), Bias(bias='bias'), "
    f"Mask(mask='mask', keep=False)], {NAN})",
)
def attention(x, bias, flags):
    return functional.softmax((x / 8 + bias).masked_fill(flags, -torch.inf), dim=-1)


@pattern(X, FLAGS, wanted=f"Softmax(load=[Mask(mask='mask', keep=True)], {NAN})")
def where_kept(x, flags):
    return torch.where(flags, x, -torch.inf).softmax(-1)


@pattern(
    X,
    FLAGS,
    wanted=f"LogSoftmax(load=[masked_fill('operand')], store=[Scale(scale='scale')], {NAN})",
)
def a_large_number_is_no_mask(x, flags):
    return x.masked_fill(flags, -1e4).log_softmax(-1) * 2.0


@pattern(X, wanted=f"Softmax(load=[Softcap(cap='cap')], {NAN})")
def softcapped(x):
    return torch.special.softmax(torch.tanh(x / 30.0) * 30.0, -1)


@pattern(
    X, OTHER, wanted=f"Softmax(load=[Residual(residual='residual', alpha=-1.0, save=None)], {NAN})"
)
def other_dims(x, other):
    return torch.softmax(x - other, dim=1)


@pattern(
    X,
    OTHER,
    VECTOR,
    BIAS[0, 0],
    wanted="LayerNorm(load=[Residual(residual='residual', "
    "alpha=1.0, save='stream', dtype=torch.float64)], store=[Affine(gamma='gamma', beta='beta'),"
    f" GELU(approximate='none')], eps=1e-05, {STATS})",
)
def add_norm(x, other, gamma, beta):
    total = x + other
    return functional.gelu(functional.layer_norm(total, (COLUMNS,), gamma, beta)), total * 2


@pattern(
    X,
    VECTOR,
    OTHER,
    wanted="RMSNorm(load=[GELU(approximate='none')], store=[Affine(gamma='gamma', beta=None), "
    f"Gate(gate='gate', activation='silu', of='gate')], eps=1e-06, {STATS})",
)
def gated_rms_norm(x, gamma, gate):
    normed = functional.rms_norm(functional.gelu(x), (COLUMNS,), gamma, 1e-6)
    return normed * functional.silu(gate)


@pattern(
    X,
    wanted=f"GroupNorm(load=[Scale(scale='scale')], store=[ReLU()], num_groups=3, eps=1e-05, "
    f"{STATS})",
)
def group_norm(x):
    return functional.relu(functional.group_norm(x * 3, 3))


@pattern(
    X,
    OTHER,
    wanted=f"L2Norm(load=[Residual(residual='residual', {PLAIN})], eps=1e-12, {STATS})",
)
def normalized(x, other):
    return functional.normalize(torch.add(x, other, alpha=0.5), dim=-1)


@pattern(
    X, VECTOR, wanted=f"LayerNorm(store=[Affine(gamma='scale', beta='bias')], eps=1e-05, {STATS})"
)
def affine_by_hand(x, gamma):
    return functional.layer_norm(x, (COLUMNS,)) * gamma + (gamma * 2)


@pattern(X, wanted=f"LayerNorm(load=[mul_sigmoid()], eps=1e-05, {STATS})")
def a_value_used_twice(x):
    return functional.layer_norm(x * torch.sigmoid(1.702 * x), (5, COLUMNS))


@pytest.mark.parametrize("name", PATTERNS)
def test_pattern(name):
    program, inputs, wanted = PATTERNS[name]
    (one,) = held(program, *inputs)
    assert repr(one.op) == wanted
    assert one.moved.after < one.moved.before


class Modules(nn.Module):
    """Modules of torch that Dynamo inlines."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(COLUMNS), nn.Dropout(0.5)
        self.act, self.soft = nn.GELU(approximate="tanh"), nn.Softmax(-1)

    def forward(self, x, residual):
        return self.act(self.norm(self.drop(x) + residual)), self.soft(x * 0.5)


@pytest.mark.thorough
def test_modules_that_are_inlined():
    """In evaluation the dropout is nothing; in training it is the op's, by its contract."""
    model = Modules().double().eval()
    first, second = held(model, X, OTHER)
    assert repr(first.op).startswith("LayerNorm(load=[Residual(residual='residual', ")
    assert not first.drops
    assert repr(second.op) == f"Softmax(load=[Scale(scale='scale')], {NAN})"
    fused, found = compiled(model.train())
    torch.manual_seed(3)
    with torch.no_grad():
        y, _ = fused(X.double(), OTHER.double())
    assert found[0].drops
    torch.manual_seed(3)
    seed = torch.empty((), dtype=torch.int64).random_().item()
    kept = found[0].op.dropout_mask(X.shape, seed, 0, 0.5)
    wanted = model.norm(torch.where(kept, X.double() * 2, 0) + OTHER.double())
    assert_near([y], [model.act(wanted)])


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_each_result_is_rounded_once(dtype):
    """Outputs and the gradient of x are within the package's bound of the truth in double."""
    program, inputs, _ = PATTERNS["add_norm"]
    given = [t.to(dtype) for t in inputs]
    fused, _ = compiled(program)
    (y, _), (dx, *_) = trained(fused, given)
    (truth, _), (true_dx, *_) = trained(program, [t.double() for t in given])
    (chain, _), (chain_dx, *_) = trained(program, [t.float() for t in given])
    if dtype is torch.float16:  # the stream is rounded, and upstream gradients are other numbers
        total = (given[0] + given[1]).double()
        rest = [t.double() for t in given[2:]]
        normed = functional.layer_norm(total, (COLUMNS,), *rest)
        truth, chain = functional.gelu(normed), functional.gelu(normed.float())
        check(y, truth, chain)
        return
    check(y, truth, chain)
    check(dx, true_dx, chain_dx, what="gradient of x")


def test_the_entry_point():
    program, inputs, _ = PATTERNS["attention"]
    assert "fusedops" in torch._dynamo.list_backends()
    fused = torch.compile(program, backend="fusedops", options={"inner": "eager"})
    check(
        fused(*inputs),
        program(*(t.double() if t.is_floating_point() else t for t in inputs)),
        program(*inputs),
    )
