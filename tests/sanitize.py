# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Every operator on every GPU schedule, and products in one kernel, small, under compute-sanitizer.

Both passes of each.

    compute-sanitizer --tool memcheck --error-exitcode 1 python tests/sanitize.py
    compute-sanitizer --tool racecheck python tests/sanitize.py --no-relay

What racecheck reports of these kernels is its own, and of two kinds (release 2025.3.1; the
experiments are entry 25 of benchmarks/log):

- a product whose tiles work together and begin with a bias: the bulk copy of a bias "races" with
  the reads of the last one. A warp's lanes read it, are synchronized, and two of them release the
  stage; racecheck counts the arrivals of lanes that read alone. Any other place in code of
  fusedops is one to look at, as is anything that memcheck or synccheck says;
- where one block of a cluster waits at its barrier for all, it never ends: ``--no-relay`` has each
  block wait, with the same bits.

cuBLAS's kernels, which gradients of products call, have hazards of their own. Several processes may
share the work: ``python tests/sanitize.py 0/4`` takes every fourth case, and ``--only products``
leaves out the rows.
"""

import argparse
import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

import fusedops as fo
from fusedops import testing
from fusedops.bind.bind import bind
from fusedops.flagship import ADD_NORM, ATTENTION
from fusedops.plan import forward
from fusedops.product.grouped_weights import gradient_of_weights
from fusedops.product.routing import combine, dispatch, route
from fusedops.row_op import RowOp
from fusedops.schedule.architectures import TILINGS
from fusedops.schedule.launch import LaunchConfig, ProductConfig
from fusedops.schedule.row_schedule import STORAGES

# Part of a warp, a warp, several warps with an odd end, several chunks, more than a cluster has
# blocks, and a cluster of which some blocks have none.
COLUMNS = (7, 256, 1024, 4099, 20001, 153600)
GRADIENT_COLUMNS = (7, 1000, 1024, 20001, 37632, 160000)
IN_SHARED = 50_000  # floats that the shared memory of every GPU from sm_90 on holds
ROWS = 5
HALF = torch.float16

Operands = dict[str, object]

# Rows, columns and depth of products: a tile that ends within its rows, columns and stages; and
# more tiles than the clusters of a GPU have at once, so that each goes on to its next.
PRODUCTS = ((300, 264, 200), (4200, 2056, 136))

TAIL = fo.Map(load=[fo.Bias("b"), fo.Dropout("p"), fo.Residual("r")])


def forward_cases(columns: int) -> dict[RowOp, Operands]:
    """The operators, and the two chains of the mission."""
    return {
        fo.Softmax(load=[fo.Causal(), fo.Lengths("n")]): {"n": 5},
        fo.LogSoftmax(): {},
        fo.LayerNorm(stats=True): {},
        fo.RMSNorm(): {},
        **chains(columns),
    }


def gradient_cases(columns: int) -> dict[RowOp, Operands]:
    """Gradients of every kind: each element's, a column's, a row's and a group's."""
    v = torch.randn(columns, device="cuda", dtype=HALF)
    row = torch.randn(ROWS, 1, device="cuda", dtype=HALF)
    return {
        fo.Softmax(load=[fo.Scale("s"), fo.Lengths("n")], store=[fo.Bias("b")]): {
            "s": row,
            "n": 5,
            "b": v,
        },
        fo.LogSoftmax(load=[fo.Scale("s")]): {"s": torch.tensor(0.5, device="cuda")},
        fo.RMSNorm(store=[fo.Affine("gamma", "beta")]): {"gamma": v, "beta": v.clone()},
        **chains(columns),
    }


def chains(columns: int) -> dict[RowOp, Operands]:
    """Both chains of the mission."""
    v, u, w = torch.randn(3, columns, device="cuda", dtype=HALF).unbind()
    mask = torch.zeros(columns, dtype=torch.bool, device="cuda")
    pair = torch.randn(1, ROWS, columns, device="cuda", dtype=HALF)
    x = torch.randn(2, ROWS, columns, device="cuda", dtype=HALF)
    return {
        ATTENTION: {"scale": 0.5, "pair_bias": pair, "padding": mask, "p": 0.1},
        ADD_NORM: {"bias": v, "p": 0.1, "residual": x, "gamma": u, "beta": w},
    }


def row_cases(relays: bool = True) -> Iterator[functools.partial[None]]:
    """Calls of operators and maps, on each schedule that holds such rows."""
    run = functools.partial(run_rows, relays=relays)
    for backward, sizes, make in (
        (False, COLUMNS, forward_cases),
        (True, GRADIENT_COLUMNS, gradient_cases),
    ):
        for columns, schedule in itertools.product(sizes, STORAGES):
            if schedule == "chunks":
                b = torch.randn(columns, device="cuda", dtype=HALF)
                r = torch.randn(2, ROWS, columns, device="cuda", dtype=HALF)
                operands = {"b": b, "p": 0.1, "r": r}
                yield functools.partial(run, TAIL, columns, operands, schedule, backward)
                continue
            long = columns > 16384
            in_shared = columns <= (16384 if backward else IN_SHARED)
            if (long and schedule == "register") or (schedule == "shared" and not in_shared):
                continue
            if not long and schedule == "cluster":
                continue
            for op, operands in make(columns).items():
                yield functools.partial(run, op, columns, operands, schedule, backward)
    # Rows that go through shared memory as they are: at any address, and of odd columns.
    for columns in (256, 1024, 4099, 20001):
        v = torch.randn(columns, device="cuda", dtype=HALF)
        yield functools.partial(run, fo.LogSoftmax(), columns, {}, None, False)
        norm = fo.LayerNorm(store=[fo.Affine("g")])
        yield functools.partial(run, norm, columns, {"g": v}, None, False)
    # Backward passes with a ring of rows, of which each block has several.
    for columns in (4096, 4097, 8191, 12289):
        v, u = torch.randn(2, columns, device="cuda", dtype=HALF).unbind()
        x = torch.randn(700, columns, device="cuda", dtype=HALF)
        added = fo.RMSNorm([fo.Residual("r", save="stream")], [fo.Affine("g")])
        norm = fo.LayerNorm(store=[fo.Affine("g", "b")])
        yield functools.partial(train, norm, (x,), {"g": v, "b": u})
        yield functools.partial(train, added, (x,), {"g": v, "r": x.clone()})


def run_rows(
    op: RowOp,
    columns: int,
    operands: Operands,
    schedule: str | None,
    backward: bool,
    relays: bool = True,
) -> None:
    """One call, and its gradients."""
    x = torch.randn(2 * ROWS * columns + 1, device="cuda", dtype=HALF)
    x = x[int(schedule is None) :][: 2 * ROWS * columns].view(2, ROWS, columns)
    with contextlib.ExitStack() as forced:
        if schedule:
            forced.enter_context(testing.force_schedule(schedule))
        if not relays and not isinstance(op, fo.Map):
            launch = without_relay(op, x, operands)
            forced.enter_context(testing.force_launch(forward=launch))
        if backward:
            train(op, (x,), operands)
        else:
            op(x, **operands)


def without_relay(op: RowOp, x: Tensor, operands: Operands) -> LaunchConfig:
    """How the call would be launched, but that each block waits for its cluster."""
    major, minor = torch.cuda.get_device_capability()
    described = forward.describe(
        bind(op, x, operands, {}), forward.Target.named(f"sm_{major}{minor}")
    )
    return described.tile.launch._replace(relay_handshake=False)


@fo.functor
def gelu(v: Tensor) -> Tensor:
    """Kept for its gradient is what goes into it."""
    return functional.gelu(v, approximate="tanh")


def product_cases() -> Iterator[functools.partial[None]]:
    """Products in one kernel: layers, two with what is between them, and scores; each tiling."""
    for (rows, columns, depth), tiling in itertools.product(PRODUCTS, TILINGS):
        x, w, w2, r, b, b2 = (
            torch.randn(*size, device="cuda", dtype=HALF)
            for size in (
                *((rows, depth), (columns, depth), (columns, columns)),
                *((rows, columns), (columns,), (columns,)),
            )
        )
        of_layers: list[tuple[fo.Linear | fo.MLP, tuple[Tensor, ...], Operands]] = [
            (fo.Linear([fo.Scale("s"), fo.Residual("r")]), (x, w), {"s": 0.5, "r": r}),
            (fo.Linear([fo.Bias("b"), gelu()]), (x, w), {"b": b}),
            (
                fo.Linear([fo.Bias("b"), fo.Dropout("p"), fo.Residual("r", save="stream")]),
                (x, w),
                {"b": b, "p": 0.1, "r": r},
            ),
            (
                fo.MLP([fo.Bias("b1"), gelu(), fo.Dropout("p")], [fo.Bias("b2"), fo.Residual("r")]),
                (x, w, w2),
                {"b1": b, "p": 0.1, "b2": b2, "r": r},
            ),
        ]
        for op, factors, operands in of_layers:
            yield functools.partial(run_product, op, factors, operands, tiling)
    # Tiles that are all masked are left out; heads share keys, and columns are odd packs.
    scores = fo.Matmul([fo.Scale("s"), fo.Bias("b"), fo.Mask("m"), fo.Causal()])
    for tiling in (name for name, one in TILINGS.items() if one.several):
        q = torch.randn(2, 3, 5, 600, 72, device="cuda", dtype=HALF)
        k = torch.randn(2, 3, 1, 616, 72, device="cuda", dtype=HALF)
        bias = torch.randn(5, 600, 616, device="cuda", dtype=HALF)
        mask = torch.randn(2, 1, 1, 1, 616, device="cuda") > 1.5
        operands = {"s": 0.5, "b": bias, "m": mask}
        yield functools.partial(run_product, scores, (q, k.mT), operands, tiling)
    # Groups of no rows, of fewer than a tile's and of more; halves of a product in one tile.
    counts = torch.tensor([0, 3, 130, 400, 1], device="cuda")
    x = torch.randn(534, 136, device="cuda", dtype=HALF)
    w = torch.randn(5, 528, 136, device="cuda", dtype=HALF)
    bias = torch.randn(5, 528, device="cuda", dtype=HALF)
    gate = [fo.Gate("up", of="value")]
    of_groups: list[tuple[fo.GroupedLinear, Operands]] = [
        (fo.GroupedLinear([fo.Bias("b"), gelu()], by_expert="b"), {"b": bias}),
        (fo.GroupedLinear(gate, halves="up"), {}),
        (fo.GroupedLinear(gate, halves="up", interleaved=True), {}),
    ]
    for op, operands in of_groups:
        yield functools.partial(
            run_product, op, (x, w), {"offsets": counts, **operands}, "Together"
        )
    # Whose gradient has groups that end within a stage, and within the rows of an instruction.
    x, ends = x.repeat(1, 2), counts.cumsum(0, dtype=torch.int32)
    yield functools.partial(run_gradient_of_weights, "gradient of w", x[:, :264], x, ends)
    # Tokens whose rows are copied to groups, and written back, by the products.
    yield functools.partial(run_experts, "experts", torch.randn(67, 136, device="cuda", dtype=HALF))
    # Routing by several blocks, where some numbers are no expert's.
    yield functools.partial(run_routing, "routing", torch.randint(-1, 7, (700, 2), device="cuda"))
    # The loss of each row from sums of tiles; classes of two blocks, which end within a tile.
    x, w, b = (
        torch.randn(*size, device="cuda", dtype=HALF) for size in ((300, 72), (6000, 72), (6000,))
    )
    given = {"target": torch.randint(6000, (300,), device="cuda"), "b": b}
    loss = fo.LinearCrossEntropy([fo.Bias("b")], lse=True, entropy=True, correct=True)
    for tiling in (name for name, one in TILINGS.items() if one.several and one.one_column):
        yield functools.partial(run_loss, loss, tiling, x, w, given)


def run_experts(name: str, x: Tensor) -> None:
    """A mixture of experts, and its gradients; the name is what is printed."""
    experts = fo.nn.Experts(5, x.shape[1], 72, device="cuda", dtype=HALF)
    index = torch.randint(5, (x.shape[0], 2), device="cuda")
    weight = torch.rand(*index.shape, device="cuda", dtype=HALF)
    with testing.force_launch(product=ProductConfig("Together")):
        train(functools.partial(experts, top_k_index=index), (x,), {"top_k_weights": weight})


def run_routing(name: str, index: Tensor) -> None:
    """Tokens sorted by their experts, copied and summed; the name is what is printed."""
    x = torch.randn(index.shape[0], 264, device="cuda", dtype=HALF)
    way, _, rows = route(index, torch.rand(index.shape, device="cuda"), x, 5)
    combine(rows + dispatch(x, way), way, index.shape[0])
    if testing.last_schedule() != "sum_choices":
        raise RuntimeError(f"the {name} ran by torch, wanted kernels")


def run_loss(
    loss: fo.LinearCrossEntropy, tiling: str, x: Tensor, w: Tensor, operands: Operands
) -> None:
    """A product and its loss, of which one kernel writes no logits."""
    with testing.force_launch(product=ProductConfig(tiling)), torch.no_grad():
        loss(x, w, **operands)
        if testing.last_schedule() != f"{tiling}, sums of rows":
            raise RuntimeError(f"the loss ran as {testing.last_schedule()}, wanted {tiling}")


def run_gradient_of_weights(name: str, dz: Tensor, x: Tensor, ends: Tensor) -> None:
    """The gradient of the matrices of a grouped product; the name is what is printed."""
    with testing.force_launch(product=ProductConfig("Together")):
        if gradient_of_weights(dz, x, ends) is None:
            raise RuntimeError(f"the {name} ran by torch, wanted Together")


def run_product(
    op: fo.Linear | fo.MLP | fo.Matmul | fo.GroupedLinear,
    factors: tuple[Tensor, ...],
    operands: Operands,
    tiling: str,
    trains: bool = True,
) -> None:
    """A call without gradients, and one with: that of an MLP's hidden layer has the tiling, too."""
    with testing.force_launch(product=ProductConfig(tiling)):
        with torch.no_grad():
            op(*factors, **operands)
        if testing.last_schedule() != tiling:
            raise RuntimeError(f"{op} ran as {testing.last_schedule()}, wanted {tiling}")
        if trains:
            train(op, factors, operands)


def train(op: Callable[..., object], inputs: tuple[Tensor, ...], operands: Operands) -> None:
    """A call, and the gradients of all that may have one."""
    leaves = {k: v for k, v in operands.items() if isinstance(v, Tensor) and v.is_floating_point()}
    leaves = {k: v.clone().requires_grad_() for k, v in leaves.items()}
    inputs = tuple(x.detach().requires_grad_() for x in inputs)
    outputs = op(*inputs, **{**operands, **leaves})
    outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
    torch.autograd.grad(
        outputs, [*inputs, *leaves.values()], [torch.randn_like(each) for each in outputs]
    )


def main() -> None:
    """Runs everything once, or one part of it, and says how much that was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="?", default="0/1", help="0/4 to 3/4: one of four parts")
    parser.add_argument("--only", choices=("rows", "products"), help="one kind of cases")
    parser.add_argument("--no-relay", action="store_true", help="each block waits for its cluster")
    given = parser.parse_args()
    rows = functools.partial(row_cases, relays=not given.no_relay)
    kinds = {"rows": rows, "products": product_cases}
    part, parts = map(int, given.part.split("/"))
    cases = [kinds[given.only]] if given.only else [*kinds.values()]
    every = itertools.chain.from_iterable(make() for make in cases)
    chosen = list(itertools.islice(every, part, None, parts))
    for case in chosen:
        op, *further = case.args
        print(op, *[one for one in further if isinstance(one, (int, str))], flush=True)
        case()
        torch.cuda.synchronize()  # so that what is reported is this case's
    print(f"{len(chosen)} cases ran")


if __name__ == "__main__":
    main()
