# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Gradients of every op and functor against float64: alone, in pairs, in chains, at every size."""

import contextlib
import itertools

import pytest
import torch
from cases import (
    ADD_NORM,
    ATTENTION,
    FLOATS,
    OPERATORS,
    compare,
    declare,
    exhaustive,
    gradients_of,
    parameters,
    randn,
    row_counts,
    same_bits,
    upstream_of,
    verify_gradients,
)
from references import Chain
from steps import STEPS, examples
from test_forward import COLUMNS, HELD, SHARED_BY_BLOCKS, add_norm_case, attention_case

SHAPE = (2, 3, 5, 8)

#: Shapes that operands take in turn: full, per column, per row, per head, and other mixtures.
SHAPES = [
    SHAPE,
    (8,),
    (2, 3, 5, 1),
    (3, 1, 1),
    (1, 3, 5, 8),
    (2, 1, 1, 8),
    (5, 1),
    (),
    (2, 1, 5, 8),
]

#: Those of operands that have one number a row.
ROW_SHAPES = [shape for shape in SHAPES if shape[-1:] in ((), (1,))]

STORE = examples("softmax", "store")
LOAD = {op: examples(op, "load") for op in ("softmax", "log_softmax", "layer_norm", "rms_norm")}
EPS = {"softmax": 0.0, "log_softmax": 0.0, "layer_norm": 1e-5, "rms_norm": 1e-6, "map": 0.0}


class Making:
    """Makes steps of given words, and operands for them, each of another shape."""

    def __init__(self, device, dtype=torch.float64):
        self.device, self.dtype = device, dtype
        self.operands = {}
        self.numbers = 0

    def value(self, shapes=SHAPES):
        number = len(self.operands)
        shape = shapes[number % len(shapes)]
        value = randn(*shape, dtype=self.dtype, device=self.device, seed=100 + number)
        return self.named(value)

    def row_value(self):
        """A value that is the same in all columns."""
        return self.value(ROW_SHAPES)

    def positive(self):
        """A value that is no smaller than a half."""
        name = self.value()
        self.operands[name] = self.operands[name].abs() + 0.5
        return name

    def named(self, value):
        name = f"o{len(self.operands)}"
        self.operands[name] = value
        return name

    def number(self):
        """A number that no other step gets."""
        self.numbers += 1
        return self.numbers

    def flags(self, share):
        shape = SHAPES[len(self.operands) % 6]
        return self.named(randn(*shape, device=self.device, seed=len(self.operands)) < share)

    def step(self, word):
        """The step of an example's name, with operands for it."""
        for known in STEPS.values():
            if word in known.examples:
                return known.word, *known.examples[word](self)
        raise KeyError(word)


def verify_words(op, load, store, device):
    """The values and the gradients of a chain of these examples, in double."""
    making = Making(device)
    steps = [tuple(making.step(word) for word in words) for words in (load, store)]
    chain = Chain(op, *steps, eps=EPS[op])
    x = randn(*SHAPE, dtype=torch.float64, device=device, seed=9)
    upstream = upstream_of(chain, x, making.operands)
    outputs, _ = gradients_of(declare(chain), x, making.operands, upstream)
    compare(chain, x, making.operands, {name: one.detach() for name, one in outputs.items()})
    verify_gradients(chain, x, making.operands, upstream, unfused=True)


def _alone():
    stores = itertools.cycle(STORE)
    ops = itertools.cycle(LOAD)
    for word in LOAD["softmax"]:
        yield next(op for op in ops if word in LOAD[op]), word, next(stores)


#: Every functor alone: each op's turn comes round, and a LOAD and a STORE share a kernel.
TURNS = [*_alone()]


def _quickly(op, load, store):
    # log-softmax has softmax's LOAD and LayerNorm RMSNorm's: half of them do for a quick run.
    marks = pytest.mark.thorough if op in ("log_softmax", "rms_norm") else ()
    return pytest.param(op, load, store, id=f"{op}-{load}", marks=marks)


@pytest.mark.parametrize(("op", "load", "store"), [_quickly(*one) for one in TURNS])
def test_each_functor_alone(op, load, store, device):
    verify_words(op, (load,), (store,), device)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "word"), [(op, word) for op in LOAD for word in dict.fromkeys((*LOAD[op], *STORE))]
)
def test_each_functor_alone_in_each_op(op, word):
    """In LOAD and in STORE at once, where it may stand there."""
    load, store = ((word,) if word in allowed else () for allowed in (LOAD[op], STORE))
    verify_words(op, load, store, "cuda")


#: Many functors on both sides.
LONG = {
    "softmax": ("cast scale alibi mask bias dropout keep affine", "bias scale dropout affine"),
    "log_softmax": ("dropout bias causal scale lengths alpha", "scale cast residual beta"),
    "layer_norm": ("scale residual save bias dropout affine save gamma", "gamma alpha bias"),
    "rms_norm": ("bias cast save dropout scale beta", "dropout residual cast scale"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("op", ["softmax", "layer_norm", *exhaustive("log_softmax", "rms_norm")])
def test_chains_of_many(op, device):
    load, store = LONG[op]
    verify_words(op, load.split(), store.split(), device)


#: The examples that tests of pairs leave out.
ALONE = {word for step in STEPS.values() for word in step.alone}


#: Ops with the same functors in LOAD, whose kernels read a row in the same way.
FAMILIES = (("softmax", "log_softmax"), ("layer_norm", "rms_norm"))


def pairs_of(op):
    """The chains of two functors of an op, as LOAD and STORE, by the functor that leads.

    An op has any two functors once: in LOAD in one order and, where both may stand there, in STORE
    in the other order. The other op of its family has both the other way round, so a family has
    every ordered pair in LOAD and in STORE. A functor leads half of the others.
    """
    words = [word for word in LOAD[op] if word not in ALONE]
    turned = op in (family[1] for family in FAMILIES)
    found = {word: [] for word in words}
    for (i, one), (j, other) in itertools.combinations_with_replacement(enumerate(words), 2):
        pair = (one, other) if (i + j) % 2 else (other, one)
        load = pair[::-1] if turned else pair
        store = load[::-1] if one in STORE and other in STORE else ()
        found[pair[0]].append((load, store))
    return found


def test_a_family_has_every_ordered_pair():
    for family in FAMILIES:
        chains = [chain for op in family for chains in pairs_of(op).values() for chain in chains]
        words = [word for word in LOAD[family[0]] if word not in ALONE]
        assert {load for load, _ in chains} == set(itertools.product(words, repeat=2))
        stored = [word for word in words if word in STORE]
        assert {store for _, store in chains if store} == set(itertools.product(stored, repeat=2))
    for op, known in LOAD.items():
        words = [word for word in known if word not in ALONE]
        any_two = {frozenset(load) for chains in pairs_of(op).values() for load, _ in chains}
        assert any_two == {frozenset(two) for two in itertools.product(words, repeat=2)}


#: Chains of one test: each compiles two kernels or three, a second or more with a busy machine.
OF_A_TEST = 5


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "first", "begin"),
    [
        (op, word, begin)
        for op in LOAD
        for word, chains in pairs_of(op).items()
        for begin in range(0, len(chains), OF_A_TEST)
    ],
)
def test_every_ordered_pair(op, first, begin):
    """In LOAD and in STORE at once, where both may stand there."""
    for load, store in pairs_of(op)[first][begin : begin + OF_A_TEST]:
        verify_words(op, load, store, "cuda")


@pytest.fixture(
    params=[
        pytest.param(("cpu", torch.float32), id="cpu-float32"),
        pytest.param(("cpu", torch.float16), id="cpu-float16"),
        *(
            pytest.param(("cuda", dtype), id=f"cuda-{dtype}", marks=pytest.mark.gpu)
            for dtype in (*FLOATS, torch.float64)
        ),
    ]
)
def typed(request):
    """A device and a dtype: a few on the CPU, all on a GPU."""
    return request.param


@pytest.mark.thorough
def test_attention_softmax(typed):
    device, dtype = typed
    verify_gradients(ATTENTION, *attention_case(dtype, device), unfused=True)


@pytest.mark.thorough
def test_residual_layer_norm(typed):
    device, dtype = typed
    verify_gradients(ADD_NORM, *add_norm_case(dtype, device), unfused=True)


@pytest.mark.thorough
@pytest.mark.parametrize("columns", [31, 1000, 4096])
def test_flagships_on_every_schedule(scheduled, columns):
    device, schedule = scheduled
    x, operands = attention_case(torch.float32, device, (2, 3, 5, columns))
    verify_gradients(ATTENTION, x, operands, schedule=schedule)
    x, operands = add_norm_case(torch.float32, device, columns=columns)
    verify_gradients(ADD_NORM, x, operands, schedule=schedule)


def check_row_counts(op, dtype, columns, device, schedule=None, limit=1 << 22):
    """Three row counts; a row's dx must have the same bits in each."""
    chain = OPERATORS[op]
    most, *fewer = [rows for rows in row_counts(columns, device, limit) if rows][:3]
    x = randn(most, columns, dtype=dtype, device=device, seed=columns) * 3
    operands = parameters(chain, columns, dtype, device)
    upstream = upstream_of(chain, x, operands)
    whole = verify_gradients(chain, x, operands, upstream, schedule=schedule)
    for rows in fewer:
        dy = {"y": upstream["y"][:rows]}
        part = verify_gradients(chain, x[:rows], operands, dy, schedule=schedule)
        assert same_bits(part["x"], whole["x"][:rows])


@pytest.mark.parametrize("columns", [1, 16, 31, 33, 96, 1000, 4097, 50257])
@pytest.mark.parametrize("op", OPERATORS)
def test_sizes_on_the_cpu(op, columns):
    check_row_counts(op, torch.float32, columns, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_every_size(op, dtype, columns):
    check_row_counts(op, dtype, columns, "cuda", limit=1 << 23)


#: Of two tiles, values and gradients, a block's registers hold half as many.
MOST_OF_GRADIENT = {"register": 8192, "shared": 8192}


@pytest.mark.gpu
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("schedule", ["register", "shared", "cluster", "streaming"])
@pytest.mark.parametrize("op", OPERATORS)
def test_every_schedule(op, schedule, columns):
    """One dtype for each size, so that each schedule meets all of them."""
    dtype = FLOATS[COLUMNS.index(columns) % len(FLOATS)]
    few = schedule == "cluster" and columns < SHARED_BY_BLOCKS
    if few or columns > MOST_OF_GRADIENT.get(schedule, HELD[schedule]):
        with contextlib.suppress(ValueError):
            check_row_counts(op, dtype, columns, "cuda", schedule)
        return
    check_row_counts(op, dtype, columns, "cuda", schedule)


@pytest.mark.thorough
@pytest.mark.parametrize("op", OPERATORS)
def test_mean_of_ten_thousand_sigma(op, device):
    """What is made anew is as near to the row's result as the forward pass was."""
    chain = OPERATORS[op]
    x = randn(5, 1000, device=device) + 1e4
    verify_gradients(chain, x, parameters(chain, 1000, device=device))


@pytest.mark.thorough
@pytest.mark.grid(strength=1)
@pytest.mark.parametrize("columns", [32, 100, 257, 1024])
@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_few_rows_have_the_bits_of_many(op, columns, device):
    """On a GPU up to 8 rows, or what a block has, leave no parts of sums: y and dx are the same."""
    declared, dtype = declare(OPERATORS[op]), torch.float16
    x, dy = (randn(300, columns, dtype=dtype, device=device, seed=seed) for seed in (0, 1))
    given = parameters(OPERATORS[op], columns, dtype, device)

    def step(rows):
        leaves = {"x": x[:rows], **given}
        leaves = {name: value.detach().clone().requires_grad_() for name, value in leaves.items()}
        y = declared(leaves["x"], **{name: leaves[name] for name in given})
        return y.detach(), *torch.autograd.grad(y, list(leaves.values()), dy[:rows])

    every = step(300)
    rms = op == "rms_norm"
    for rows in (2, 3, 8, 9, 31, 40):
        y, dx, *sums = step(rows)
        assert same_bits(y, every[0][:rows])
        assert same_bits(dx, every[1][:rows])
        of_x, of_y = x[:rows].double(), dy[:rows].double()
        off = of_x if rms else of_x - of_x.mean(-1, keepdim=True)
        normed = off * (off.square().mean(-1, keepdim=True) + OPERATORS[op].eps).rsqrt()
        for got, terms in zip(sums, (of_y * normed, of_y), strict=False):
            bound = terms.sum(0).abs() * 2.0**-11 + terms.abs().sum(0) * 2.0**-19 + 2.0**-25
            assert ((got.double() - terms.sum(0)).abs() <= bound).all()


@pytest.mark.thorough
def test_many_rows_add_up(device):
    """Sums over so many rows that every level of the summation takes part."""
    rows, columns = (65537, 96) if device == "cuda" else (20011, 96)
    chain = ADD_NORM
    x, operands = add_norm_case(torch.float32, device, rows, columns)
    verify_gradients(chain, x, operands)


def test_nothing_to_do(device):
    for shape in ((0, 8), (3, 0), (2, 0, 8)):
        for chain in (OPERATORS["softmax"], OPERATORS["layer_norm"]):
            operands = parameters(chain, shape[-1], device=device)
            x = torch.empty(shape, device=device)
            _, got = gradients_of(declare(chain), x, operands, {"y": torch.empty_like(x)})
            assert got["x"].shape == shape
            for name, value in operands.items():
                assert torch.equal(got[name], torch.zeros_like(value))


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [37632, 50176, 134400, 153600, 160000, 200064])
@pytest.mark.parametrize("op", OPERATORS)
def test_chunks_that_are_no_power_of_two(op, columns):
    """Blocks of a cluster that have no chunk, and some that have more than others."""
    check_row_counts(op, torch.float16, columns, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [20001, 50257, 160000])
def test_a_number_a_row_of_a_cluster(columns):
    """Its gradient is a sum over the blocks."""
    x = randn(5, columns, device="cuda").half()
    scale = randn(5, 1, device="cuda", seed=1)
    verify_gradients(Chain("softmax", (("scale", "s"),)), x, {"s": scale})
    verify_gradients(Chain("softmax", (("scale", "s"),)), x, {"s": scale[0]})
