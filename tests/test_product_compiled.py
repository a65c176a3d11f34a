# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Products in compiled code: eager's bits, which operators a graph holds, exports, and refusals."""

import io

import pytest
import torch
from captured import target_of
from cases import raises, randn, same_bits, thorough, thorough_points
from products import (
    HALF,
    HIDDEN,
    HOPPER,
    OPS,
    SCORES,
    STORES,
    all_same,
    apart,
    call,
    close,
    compiled,
    forced,
    gelu,
    given,
    in_a_checkpoint,
    learning,
    may_be_one,
    step,
)
from torch import library
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional

import fusedops as fo
from fusedops.product import torch_op

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.fixture
def one(monkeypatch):
    """As on a GPU where one kernel may be chosen for some sizes; what is asked of that."""
    return may_be_one(monkeypatch)


def watched(function):
    """A function that torch compiles, and what its graph calls once it has run."""
    found = []

    def backend(module, inputs):
        targets = [target_of(n) for n in module.graph.nodes if n.op == "call_function"]
        found.extend(name for name in targets if "getitem" not in name)
        return aot_eager(module, inputs)

    return compiled(function, backend), found


def own(graph):
    """The operators of this package in it, in order."""
    return [name.removeprefix("fusedops.") for name in graph if "fusedops." in name]


FURTHER = fo.Linear([fo.Scale("p"), fo.Bias("b"), fo.Gate("g")])
DROPS, TRAINS = fo.Linear(STORES["dropout"]), fo.Linear([*STORES["gelu"], fo.Dropout("p")])
ADDS = fo.Linear([*STORES["dropout"], fo.Residual("r")])
TWICE = fo.MLP([gelu(), fo.Residual("r"), fo.Residual("g")])
ALL, NONE = None, ()
LINEAR, MATMUL, APART = (["forward of " + kind] for kind in ("Linear", "Matmul", "Map"))
PAIR, LATER = ([*each, "linear_recomputed"] for each in (LINEAR, APART))

#: An op, its dtype, what has a gradient, options, the operators where one kernel may be chosen, and
#: where not.
CALLS = {
    "layer": (OPS["layer"], HALF, NONE, {}, LINEAR, APART),
    "layer, learning": (OPS["layer"], HALF, ALL, {}, LINEAR, APART),
    "layer, learning x": (OPS["layer"], HALF, ["x"], {}, LINEAR, APART),
    "layer, learning w": (OPS["layer"], HALF, ["w"], {}, LINEAR, APART),
    "layer, learning b": (OPS["layer"], HALF, ["b"], {}, LINEAR, APART),
    "layer, float32": (OPS["layer"], torch.float32, NONE, {}, APART, APART),
    "to float32": (FURTHER, HALF, NONE, {"dtype": torch.float32}, LINEAR, APART),
    "dropout": (DROPS, HALF, NONE, {}, LINEAR, APART),
    "dropout, seeded": (DROPS, HALF, NONE, {"generator": (5, 64)}, LINEAR, APART),
    "dropout, still": (DROPS, HALF, NONE, {"training": False}, LINEAR, APART),
    "dropout, learning": (TRAINS, HALF, ALL, {}, LINEAR, APART),
    "dropout, learning x": (DROPS, HALF, ["x"], {}, LINEAR, APART),
    "residual, learning": (ADDS, HALF, ALL, {}, LINEAR, APART),
    "residual, learning r": (ADDS, HALF, ["r"], {}, LINEAR, APART),
    "saving": (OPS["saving"], HALF, ALL, {}, LINEAR, APART),
    "full": (OPS["full"], torch.float32, ALL, {}, APART, APART),
    "scores": (fo.Matmul(SCORES["scores"]), HALF, ALL, {}, MATMUL, APART),
    "scores, float32": (OPS["scores"], torch.float32, NONE, {}, APART, APART),
    "lengths": (OPS["scores"], HALF, ALL, {}, APART, APART),
    "capped": (OPS["capped"], HALF, ALL, {}, MATMUL, APART),
    "block": (OPS["block"], torch.bfloat16, ALL, {}, [*PAIR, *APART], None),
    "block, float32": (OPS["block"], torch.float32, ALL, {}, None, None),
    "block, seeded": (OPS["block"], torch.float32, ALL, {"generator": (5, 64)}, None, None),
    "block, still": (OPS["block"], torch.float32, ALL, {"training": False}, None, None),
    "plain": (OPS["plain"], HALF, ALL, {}, PAIR, LATER),
    "plain, still": (OPS["plain"], HALF, NONE, {}, LINEAR, APART),
    "plain, frozen x": (OPS["plain"], torch.float32, ["w1", "w2", "b1", "b2"], {}, LATER, LATER),
    "plain, frozen w1": (OPS["plain"], torch.float32, ["x", "w2", "b1", "b2"], {}, LATER, LATER),
    "plain, frozen biases": (OPS["plain"], torch.float32, ["x", "w1", "w2"], {}, LATER, LATER),
    "plain, frozen layer": (OPS["plain"], torch.float32, ["w2", "b2"], {}, APART, APART),
    "plain, frozen w2": (OPS["plain"], torch.float32, ["x", "w1", "b1", "b2"], {}, APART, APART),
    "gate": (fo.MLP(HIDDEN["gate"], [fo.Bias("b2")]), torch.bfloat16, ALL, {}, PAIR, None),
    "bare": (fo.MLP(HIDDEN["bare"], [fo.Bias("b2")]), torch.bfloat16, ALL, {}, PAIR, None),
    # Two residuals, whose gradients are one tensor in eager code.
    "twice": (TWICE, torch.float32, ALL, {}, APART, APART),
}
QUICK = ["layer", "dropout", "dropout, seeded", "dropout, still", "to float32", "plain, still"]
ONE = [name for name, (_, dtype, *_) in CALLS.items() if dtype is not torch.float32]
TWO = [name for name in CALLS if name not in ONE]
TWO += ["layer", "dropout", "saving", "scores", "block", "plain"]
#: CI does not have these: a gradient of one tensor alone, settings that others have as well.
SELDOM = {f"layer, learning {name}" for name in ("x", "w", "b")}
SELDOM |= {f"plain, frozen {name}" for name in ("w1", "biases", "layer")}
SELDOM |= {"dropout, learning x", "residual, learning r", "scores, float32", "lengths"}
SELDOM |= {"block, seeded", "block, still"}


@pytest.mark.grid(strength=1)
@pytest.mark.parametrize(
    ("name", "may"),
    [
        *((name, "one kernel") for name in QUICK),
        *thorough_points(
            *((name, "one kernel") for name in ONE if name not in QUICK),
            *((name, "two kernels") for name in TWO),
            exhaustive=SELDOM,
        ),
    ],
)
def test_a_graph_has_the_bits_of_an_eager_call(name, may, device, request, monkeypatch):
    """One operator where one kernel may be chosen, else torch's product and one of the STORE.

    Dropouts drop what they drop in eager code, of torch's generator or of a seed.
    """
    op, dtype, wanted, options, of_one, of_two = CALLS[name]
    if may == "one kernel":
        request.getfixturevalue("one")
    elif device == "cuda":  # where one kernel may be chosen
        may_be_one(monkeypatch, False)
    sizes = {"r": (2, 6, 40)} if op is TWICE else {}
    tensors = learning(given(op, dtype, device, **sizes), wanted)
    expected = of_one if may == "one kernel" else of_two
    function, graph = watched(op)
    results = [step(op, tensors, each, **options) for each in (op, function)]
    assert all_same(*results)
    if expected is not None:
        assert [one for one in own(graph) if one != "draw"] == expected
        draws = sum(each.dropouts > 0 for each in op.epilogues)
        assert own(graph).count("draw") == (0 if options else draws)
        words = ("linear", "atmul", "of Linear")
        assert sum(any(word in one for word in words) for one in graph) == len(op.inputs) - 1
    if isinstance(op, fo.MLP):
        factors, operands = apart(op, tensors)
        recomputed = op.explain(*factors, **operands).recomputed
        assert ("fusedops.linear_recomputed" in graph) is recomputed


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "backend"),
    [("layer", "inductor"), ("scores", "inductor"), ("block", "inductor"), ("block", "eager")],
)
def test_other_backends(name, backend, device, one):
    op, dtype, wanted, options, *_ = CALLS[name]
    tensors = learning(given(op, dtype, device), wanted)
    results = [step(op, tensors, each, **options) for each in (op, compiled(op, backend))]
    assert all_same(*results)


@pytest.mark.parametrize(
    ("name", "may"),
    [
        ("layer", "one kernel"),
        *thorough_points(
            ("scores", "one kernel"), ("plain", "one kernel"), ("plain", "two kernels")
        ),
    ],
)
def test_one_graph_serves_any_batch(name, may, device, request):
    """Of one batch, and of any; of no rows, too."""
    op, dtype, wanted, *_ = CALLS[name]
    if may == "one kernel":
        asked = request.getfixturevalue("one")
    counter = CompileCounterWithBackend("aot_eager")

    def scaled(*factors, **operands):  # a number that is an argument takes two attempts
        return op(*factors, s=0.5, **operands)

    eager = scaled if name == "scores" else op
    function = compiled(eager, counter, dynamic=None if name == "layer" else True)
    for rows, heads in ((9, 3), (12, 3), (7, 5)):
        sizes = {"rows": (rows,)}
        if name == "scores":
            sizes = {"pair": ((2, heads, rows, 16), (2, 1, 16, 24))}
        tensors = learning(given(op, dtype, device, **sizes), wanted)
        tensors = {key: one for key, one in tensors.items() if key != "s"}
        first, second = (step(op, tensors, each) for each in (eager, function))
        if name == "scores":  # float16 products, summed over heads in another order
            assert same_bits(first[0], second[0])
            close(first[1:], second[1:], 4e-3)
        else:
            assert all_same(first, second)
    assert counter.frame_count == (2 if name == "layer" else 1)
    if may == "one kernel":
        assert asked
        assert {each[1:] for each in asked} == {(None, None)}, "w is no parameter"
    if name != "scores":
        tensors = learning(given(op, dtype, device, rows=(0, 3)), wanted)
        assert all_same(*(step(op, tensors, each) for each in (op, compiled(op))))


def test_under_autocast(device, one):
    """Where it begins within the code that is compiled."""
    op = OPS["layer"]

    def cast(*factors, **operands):
        with torch.autocast(device, torch.bfloat16):
            return op(*factors, **operands)

    tensors = given(op, device=device)
    function, graph = watched(cast)
    results = [call(op, tensors, each) for each in (cast, function)]
    assert all_same(*results)
    assert own(graph) == LINEAR
    assert results[0][0].dtype is torch.bfloat16


def test_a_parameter_has_known_sizes(device, one):
    for name, writes in (("layer", 0), ("saving", 1)):
        tensors = given(OPS[name], HALF, device)
        tensors["w"] = torch.nn.Parameter(tensors["w"])
        with torch.no_grad():
            call(OPS[name], tensors, compiled(OPS[name]))
        assert {*one} == {(writes, 24, 16)}
        one.clear()


def test_each_call_draws_anew(device, one):
    """As torch seeds it."""
    tensors = given(DROPS, HALF, device)
    function = compiled(DROPS)
    torch.manual_seed(3)
    first, second = (call(DROPS, tensors, function)[0] for _ in "xy")
    torch.manual_seed(3)
    assert same_bits(call(DROPS, tensors, function)[0], first)
    assert not same_bits(first, second)
    assert 0.1 < (first == 0).float().mean() < 0.5


@pytest.mark.thorough
def test_a_checkpoint_goes_back_by_the_masks_that_it_drew(device):
    op = fo.MLP(hidden=[gelu(), fo.Dropout("p")])
    x, dy = (randn(6, 16, device=device, seed=seed) for seed in (1, 2))
    leaves = [x, *(torch.eye(16, device=device) for _ in range(2))]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    y = compiled(in_a_checkpoint(op))(*leaves, p=0.5)
    got = torch.autograd.grad(y, leaves, dy)
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    h = functional.gelu(exact[0] @ exact[1].T, approximate="tanh") * (y.detach() != 0) * 2
    assert 0 < (y == 0).sum() < y.numel()
    want = torch.autograd.grad(h @ exact[2].T, exact, dy.double())
    close([one.double() for one in got], want, 1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["bias", "layer", "product", "plain"])
def test_arguments_that_eager_code_refuses(name):
    """A misspelled one, an option of row ops alone, a missing operand: torch's product or not."""
    op = OPS[name]
    factors, operands = apart(op, given(op))
    wrong = [{**operands, "bb": 1.0}, {**operands, "dim": 0}, {**operands, "seed": 1}]
    for arguments in [*wrong, {}] if operands else wrong:
        errors = []
        for each in (op, torch.compile(lambda *a, **k: op(*a, **k), backend="aot_eager")):
            with pytest.raises(TypeError) as error:
                each(*factors, **arguments)
            errors.append(str(error.value).split("\n")[0])
        assert errors[0] == errors[1]


class Scores(torch.nn.Module):
    def forward(self, q, k):
        return OPS["causal"](q, k.mT, s=0.5)


#: What makes a module, and the shapes of a call.
MODULES = {
    "Linear": (lambda **k: fo.nn.Linear(16, 8, p=0.5, **k), ((4, 16), (4, 8))),
    "MLP": (lambda **k: fo.nn.MLP(16, 40, activation=gelu(), **k), ((4, 16),)),
    "scores": (lambda **k: Scores(), ((4, 3, 7, 16), (4, 3, 9, 16))),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["Linear", "MLP", *thorough("scores")])
def test_exported_and_saved(name, strict, device, one):
    """The program holds torch's products and Maps, for batches of any size, whatever may be one."""
    make, shapes = MODULES[name]
    module = make(device=device, dtype=HALF).eval()
    inputs = [randn(*shape, dtype=HALF, device=device) for shape in shapes]
    batch = torch.export.Dim("batch", min=2, max=64)
    dims = tuple({0: batch} for _ in shapes)
    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs), dynamic_shapes=dims, strict=strict)
    targets = [target_of(n) for n in program.graph.nodes if n.op == "call_function"]
    assert own(targets) == ["forward.default of Map"]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()
    more = [randn(7, *shape[1:], dtype=HALF, device=device) for shape in shapes]
    assert same_bits(again(*more).detach(), module(*more).detach())


class Own(torch.Tensor):
    """A class that sees the calls that it is in."""


@pytest.mark.parametrize("name", ["plain", *thorough("layer")])
def test_tensors_of_a_class_have_torchs_products(name, device, one):
    tensors = learning(given(OPS[name], HALF, device), ["w", "w1", "w2"])
    tensors["x"] = tensors["x"].as_subclass(Own)
    function, graph = watched(OPS[name])
    # The check that torch 2.11 to 2.14 makes of a graph's first call fails for every such class.
    config, check = torch._functorch.config, "check_custom_op_aliasing"
    with config.patch({check: False} if hasattr(config, check) else {}):
        call(OPS[name], tensors, function)
    assert {*own(graph)} == {*APART}


class TestOperators:
    """What graphs call, called by hand."""

    @staticmethod
    def forward(device="cpu", text=None, keep=False):
        """Arguments of `fusedops::forward` of a layer."""
        x, w, b = given(OPS["layer"], HALF, device).values()
        text = text or OPS["layer"].text
        bias = "b" if text == OPS["layer"].text else "other"
        return x, [w, b], ["w", bias], [], None, None, text, [2], HALF, keep

    @staticmethod
    def recomputed(device="cpu"):
        """Arguments of `fusedops::linear_recomputed`."""
        x, w1, w2, b1, _ = learning(given(OPS["plain"], device=device)).values()
        z = (x @ w1.T).detach()
        h = functional.gelu(z + b1, approximate="tanh").detach()
        return (h, w2, None, x, w1, [z, b1], ["x", "b1"], [], OPS["plain"].epilogues[0].text)

    @pytest.mark.thorough
    @pytest.mark.parametrize("name", ["forward", "linear_recomputed", "product_backward"])
    def test_opcheck(self, name, device):
        arguments = self.forward(device) if name == "forward" else self.recomputed(device)
        if name == "product_backward":
            _, w2, _, _, _, (z, b1), names, numbers, text = arguments
            dy = randn(*z.shape[:-1], w2.shape[0], device=device)
            arguments = (dy, w2.detach(), [z, b1.detach()], names, numbers, text, ["w2", "x", "b1"])
        op = getattr(torch.ops.fusedops, name).default
        assert {*library.opcheck(op, tuple(arguments)).values()} == {"SUCCESS"}

    def test_refusals(self, device):
        """A product that was not saved, vmap, a second derivative."""
        x, *rest = self.forward(device)
        leaf = x.clone().requires_grad_()
        (y,) = torch.ops.fusedops.forward(leaf, *rest)
        with raises(fo.UnsupportedError, "no gradient was wanted"):
            y.sum().backward()
        with pytest.raises(fo.UnsupportedError, match=r"Linear: .* reads the product"):
            torch.ops.fusedops.forward(leaf, *self.forward(device, keep=True)[1:])
        with raises(fo.UnsupportedError, "vmap"), torch.no_grad():
            torch.func.vmap(lambda x: torch.ops.fusedops.forward(x, *rest))(x[None])
        arguments = self.recomputed(device)
        y = torch.ops.fusedops.linear_recomputed(*arguments)
        (dw1,) = torch.autograd.grad(y.square().sum(), [arguments[4]], create_graph=True)
        with raises(fo.UnsupportedError, "first derivative only"):
            dw1.sum().backward()
        h, *rest = arguments
        with raises(fo.UnsupportedError, "MLP: torch.func.vmap"):
            torch.func.vmap(lambda h: torch.ops.fusedops.linear_recomputed(h, *rest))(h)

    def test_a_layer_that_is_gone_is_made_again(self, device):
        op = OPS["layer"]
        arguments = self.forward(device, op.text.replace("Bias(bias='b')", "Bias(bias='other')"))
        (y,) = torch.ops.fusedops.forward(*arguments)
        assert same_bits(y, op(arguments[0], arguments[1][0], b=arguments[1][1]))


def test_where_one_kernel_may_be_compiled(monkeypatch):
    """By what is known as code is compiled; a file that was tuned counts."""
    monkeypatch.setattr(torch_op.Target, "of", classmethod(lambda cls, device: HOPPER))
    known = (OPS["layer"].epilogue.text, HALF, torch.device("cuda", 0))
    assert torch_op._may_be_one(*known, 0, 0, False)
    assert torch_op._may_be_one(*known, 1, 0, True), "of several dimensions, and perhaps no larger"
    assert torch_op._may_be_one(*known, 0, 0, False, 1024, 4096)
    assert torch_op._may_be_one(*known, 0, 0, False, 1024, 8192), "of few rows"
    for n, k in ((128, 8192), (1024, 1004), (1004, 1024)):
        assert not torch_op._may_be_one(*known, 0, 0, False, n, k)
    assert not torch_op._may_be_one(*known[:2], torch.device("cpu"), 0, 0, False)
    with forced("two_kernels"):
        assert not torch_op._may_be_one(*known, 0, 0, False)
    monkeypatch.setattr(torch_op.Target, "of", classmethod(lambda cls, d: HOPPER.named("sm_100")))
    assert not torch_op._may_be_one(*known, 0, 0, False)
