# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Compare the plans of two versions of the package: what a pure refactoring must not move.

    python tests/same_code.py write before.json                  # at the one commit
    python tests/same_code.py compare before.json                # at the other
    python tests/same_code.py show "Softmax causal fp16 sm_90"   # one case in words, for a diff
    python tests/same_code.py write before.json --cubins 20      # compiles some variants as well

A case is a declaration, a dtype, an architecture and a pass. Its calls are planned one after
another on one op, since the second call of a pattern makes a form of its argument, the third one
fills it in, and a call with few rows may be served by a kernel of many. Of each plan every field is
reduced to a digest, with the C++ text of every kernel in the place of the kernel. Tensors have no
memory, and nothing is compiled without --cubins.
"""

import argparse
import contextlib
import functools
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch

import fusedops as fo
from fusedops import _runtime
from fusedops._runtime import Reason
from fusedops.bind.bind import floating
from fusedops.declare.options import parted
from fusedops.generate.target import Target
from fusedops.generate.variant import Variant
from fusedops.jit import nvrtc
from fusedops.product.product_backward import ProductBackward
from fusedops.run.gradient import described, gradient_of
from fusedops.schedule.architectures import TILINGS
from fusedops.schedule.launch import ProductConfig
from fusedops.testing import force_launch

ARCHS = ("x86-64-v3", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
COLUMNS = (1, 8, 33, 257, 1023, 1024, 4096, 5120, 12289, 16384, 30522, 65536, 151936)
FEW_COLUMNS = (33, 1024, 12289)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
IMAGES = ((64, 64), (14, 14), (7, 7))  # of group norms: whole packs a channel, parts, odd
#: In three dimensions, so that operands can be broadcast over some of them. The second call of a
#: row length makes a form, the third is filled in, the last ones may be read as if they were more.
ROWS = ((3, 2, 40), (5, 2, 40), (4, 2, 8), (1, 2, 1), (1, 1, 1))


@fo.functor
def softcap(x, cap):
    return cap * torch.tanh(x / cap)


@fo.functor
def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


#: What may stand around a softmax, around a norm, in a map, and after a product.
MASKING = {
    "plain": {},
    "number": {"load": [fo.Scale("s")]},
    "temperature": {"load": [fo.Scale("row")]},
    "bias": {"load": [fo.Bias("full")]},
    "pair bias": {"load": [fo.Scale("s"), fo.Bias("pair"), fo.Mask("mask")]},
    "keep": {"load": [fo.Mask("mask", keep=True)]},
    "causal": {"load": [fo.Scale("s"), fo.Causal()], "store": [fo.Dropout("p")]},
    "window": {"load": [fo.Window(2, 0), fo.Lengths("n")]},
    "alibi": {"load": [fo.Alibi("slopes")], "store": [fo.Cast(torch.bfloat16)]},
    "residual": {"load": [fo.Residual("full", save="z"), fo.Bias("column")]},
    "own": {"load": [softcap("s"), softcap("row")]},
    "gather": {"load": [fo.Gather("table", "index")]},
    "tap": {"store": [fo.Tap("probs"), fo.Dropout("p")]},
    "eight bits": {"store": [fo.Quantize("s", torch.float8_e4m3fn, amax="amax")]},
    "optional": {"load": [fo.Mask("mask", optional=True), fo.Bias("missing", optional=True)]},
    "shared draw": {"store": [fo.Dropout("p", shared=(-3,))]},
}
SOFTMAX = {
    **MASKING,
    "sink": {"load": [fo.Causal()], "lse": True, "sink": "slopes"},
    "lse": {"lse": True},
}
NORMING = {
    "plain": {},
    "stats": {"stats": True},
    "affine": {"store": [fo.Affine("gamma", "beta")]},
    "gamma": {"store": [fo.Affine("gamma", None)]},
    "scales": {"load": [fo.Scale("row")], "store": [fo.Scale("gamma"), fo.Bias("full")]},
    "flagship": {
        "load": [fo.Bias("column"), fo.Dropout("p"), fo.Residual("full", save="z")],
        "store": [fo.Affine("gamma", "beta")],
    },
    "shared": {"load": [fo.Bias("pair")], "store": [fo.Bias("column"), fo.Scale("column")]},
    "two dropouts": {"load": [fo.Dropout("p")], "store": [fo.Dropout("p"), softcap(2.5)]},
    "masked": {"load": [fo.Lengths("n")], "store": [fo.Affine("gamma", "beta")]},
    "gather": {"load": [fo.Gather("table", "index")], "store": [fo.Affine("gamma", None)]},
    "tap": {"store": [fo.Tap("normed"), fo.Affine("gamma", "beta")]},
    "eight bits": {"store": [fo.Affine("gamma", None), fo.Quantize("s", torch.float8_e5m2)]},
}
MAPPING = {
    "copy": {},
    "bias": {"load": [fo.Bias("column"), gelu()]},
    "residual": {"load": [fo.Bias("column"), fo.Dropout("p"), fo.Residual("full", save="z")]},
    "gate": {"load": [fo.Gate("full", "silu")]},
    "masked": {"load": [fo.Scale("s"), fo.Causal(), fo.Mask("mask")]},
    "gather": {"load": [fo.Gather("table", "index")]},
    "tap": {"load": [fo.Bias("column")], "store": [fo.Tap("t"), softcap("row")]},
    "eight bits": {"store": [fo.Quantize("s", torch.float8_e4m3fn, amax="amax")]},
}
PRODUCTS = {
    "gelu": [fo.Bias("column"), gelu()],
    "dropout": [fo.Bias("column"), fo.Dropout("p")],
    "saving": [fo.Bias("column"), fo.Dropout("p"), fo.Residual("full", 0.5, save="stream")],
    "tap": [fo.Scale("row"), gelu(), fo.Tap("act"), fo.Residual("full")],
    "scaled": [fo.Scale("s"), fo.Bias("pair"), fo.Mask("mask")],
}
OPS = (
    (fo.Softmax, SOFTMAX),
    (fo.LogSoftmax, SOFTMAX),
    (fo.LayerNorm, NORMING),
    (fo.RMSNorm, NORMING),
    (fo.L2Norm, NORMING),
    (fo.Map, MAPPING),
)


class Case(NamedTuple):
    """Calls that are planned in turn, each with its name; made anew for each architecture."""

    name: str
    plans: Callable[[], Iterator[tuple[str, Callable[[], object]]]]
    archs: tuple[str, ...] = ARCHS


class Stand:
    """In the place of a kernel."""

    def __init__(self, variant) -> None:
        self.variant = variant


def operands(names, shape, dtype):
    """A value for each of these names, for an x of this shape; tensors have no memory."""
    *rows, columns = shape

    def tensor(*sizes, dtype=dtype):
        return torch.empty(sizes, dtype=dtype, device="meta")

    def known(name):
        match name:
            case "s":
                return 0.5
            case "p":
                return 0.25
            case "missing":
                return None
            case "row":
                return tensor(*rows, 1)
            case "full":
                return tensor(*shape)
            case "pair":
                return tensor(1, *shape[1:])
            case "mask":
                return tensor(rows[0], *[1] * len(rows[1:]), columns, dtype=torch.bool)
            case "n":
                return tensor(rows[0], *[1] * len(rows), dtype=torch.int64)
            case "slopes":
                return tensor(rows[-2], 1, 1)
            case "table":
                return tensor(32, rows[-2])
            case "index":
                return tensor(rows[-1], columns, dtype=torch.int64)
        return tensor(columns)  # column, gamma, beta

    return {name: known(name) for name in names}


def meta(shape, dtype):
    """A tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")


# ------------------------------------------------------------------------------------- the passes


def forward(op, x, arguments, keep):
    """The plan of a forward call, of one that keeps row statistics for the backward pass."""
    if keep:
        op, x, arguments = op.over_rows(x, arguments)
        return op._slow_trained(Reason.MISS, x, *parted(arguments))
    return op._slow(Reason.MISS, x, *parted(arguments))


def backward(bound, gradients, wanted, joining):
    """The plan of the gradients of the names in `wanted`, in which gradients of `joining` join."""
    key = frozenset(wanted), frozenset(joining)
    if key not in gradients:
        gradients[key] = gradient_of(bound, *key)
        gradients[key].observer = bound.op.observer
    return gradients[key]._plan(*described(bound, gradients[key]))


def product(op, x, w, arguments):
    """The plan of a product and its STORE as one kernel; None where two are better."""
    return op._plan(x, w, arguments)


def product_backward(gradient, dy, w, z, arguments):
    """The plan of the product's gradient and the functors before it, as one kernel, or None."""
    values, options = parted(arguments)
    return gradient._slow(Reason.MISS, dy, {"x": z, "w": w, **values}, options)


# -------------------------------------------------------------------------------------- the cases


def row_calls(op, shapes, dtype, options=None):
    """The calls of a row op, on an x of each of these shapes: name, x and arguments."""
    for shape in shapes:
        x = meta(shape, dtype)
        values = {k: v for k, v in operands(op.slots, shape, dtype).items() if v is not None}
        yield "x".join(map(str, shape)), x, values | (options or {})


def row_passes(name, make, calls, archs=ARCHS) -> Iterator[Case]:
    """A case for each pass of the calls of an op; `calls` are those of `row_calls`, of the op."""

    def planned(plan):
        def plans():
            op = make()
            memory = {}
            for called, x, arguments in calls(op):
                yield called, functools.partial(plan, op, memory, x, arguments)

        return plans

    for keep in (False, True):
        plan = functools.partial(_forward, keep)
        yield Case(f"{name} forward{' kept' * keep}", planned(plan), archs)
    for which in ("x", "all", "joined"):
        yield Case(f"{name} gradient of {which}", planned(functools.partial(_back, which)), archs)


def _forward(keep, op, memory, x, arguments):
    return forward(op, x, arguments, keep)


def _back(which, op, memory, x, arguments):
    bound = op.bind(x, arguments)
    wanted = {"x"} if which == "x" else {"x", *floating(bound.operands)}
    joining = bound.op.joining if which == "joined" else ()
    wanted -= bound.op.undifferentiated
    return backward(bound, memory, wanted, joining) if x.numel() else None


def row_cases() -> Iterator[Case]:
    """The row ops with every chain, and further ways to call them."""
    for (kind, chains), dtype in itertools.product(OPS, DTYPES):
        lengths = COLUMNS if dtype is torch.float16 else FEW_COLUMNS
        for chain, given in chains.items():
            name = f"{kind.__name__} {chain} {short(dtype)}"
            shapes = [(*rows, n) for n in lengths for rows in ROWS]
            calls = functools.partial(row_calls, shapes=shapes, dtype=dtype)
            yield from row_passes(name, functools.partial(kind, **given), calls)
    flagship = functools.partial(fo.LayerNorm, **NORMING["flagship"])
    attention = functools.partial(fo.Softmax, **MASKING["causal"])
    drawn = torch.empty(2, dtype=torch.int64, device="meta")
    ways = {
        "part_of": {"part_of": ((6, 4, 40, 1024), (3, 2, 0, 0))},
        "evaluation": {"training": False},
        "drawn in memory": {"generator": drawn},
        "float32 out": {"dtype": torch.float32},
    }
    for (word, make), (way, options) in itertools.product(
        {"LayerNorm": flagship, "Softmax": attention}.items(), ways.items()
    ):
        shapes = [(3, 2, 40, 1024)] * 3
        calls = functools.partial(row_calls, shapes=shapes, dtype=torch.float16, options=options)
        yield from row_passes(f"{word} {way}", make, calls)
    yield from row_passes("LayerNorm several dims", fo.LayerNorm, _several)
    yield from row_passes("Softmax first dim", fo.Softmax, _first_dim)
    yield from row_passes("Softmax strided", fo.Softmax, _strided)
    yield from row_passes("Softmax nothing", fo.Softmax, _nothing)
    norms = {
        "GroupNorm": functools.partial(fo.GroupNorm, 4, store=[fo.Affine("gamma", "beta")]),
        "InstanceNorm": functools.partial(fo.InstanceNorm, store=[fo.Affine("gamma", None)]),
    }
    for (word, make), dtype in itertools.product(norms.items(), DTYPES):
        calls = functools.partial(_images, dtype=dtype)
        yield from row_passes(f"{word} {short(dtype)}", make, calls)


def _several(op):
    for rows in (3, 5, 9):
        yield f"{rows}", meta((rows, 16, 64), torch.float16), {"dim": (1, 2)}
        yield f"{rows} first", meta((16, 64, rows), torch.float16), {"dim": (0, 1)}


def _first_dim(op):
    for rows in (3, 5, 9):
        yield f"{rows}", meta((128, rows, 7), torch.float32), {"dim": 0}


def _strided(op):
    for rows in (3, 5, 9):
        yield f"{rows}", meta((rows, 8, 200), torch.float16)[:, :, 1:101], {}
        yield f"{rows} turned", meta((rows, 8, 200), torch.float16).transpose(0, 1), {}
        yield f"{rows} expanded", meta((1, 8, 200), torch.float16).expand(rows, 8, 200), {}


def _nothing(op):
    yield "no rows", meta((0, 8), torch.float16), {}
    yield "no columns", meta((8, 0), torch.float16), {}


def _images(op, dtype):
    for image, samples in itertools.product(IMAGES, (3, 5, 2)):
        x, v = meta((samples, 20, *image), dtype), meta((20,), dtype)
        yield f"{samples} of {image}", x, dict.fromkeys(op.slots, v)


def product_cases() -> Iterator[Case]:
    """Linear and Matmul as one kernel, as they are chosen and forced; and what runs after two."""
    kinds = ((fo.Linear, False), (fo.Matmul, True))
    for (kind, many), (chain, store) in itertools.product(kinds, PRODUCTS.items()):
        for dtype in DTYPES[:2]:
            name = f"{kind.__name__} {chain} {short(dtype)}"
            for config in (None, *TILINGS):
                plans = functools.partial(_products, kind, many, store, dtype, config)
                yield Case(f"{name} {config or 'as chosen'}", plans, ("sm_90",))
        for dtype in DTYPES[1:3]:
            calls = functools.partial(_after, dtype=dtype)
            name = f"{kind.__name__} {chain} {short(dtype)} after torch's"
            make = functools.partial(_epilogue, kind, store)
            yield from row_passes(name, make, calls, ("x86-64-v3", "sm_80", "sm_90", "sm_100"))
    hidden = {
        "gelu": [fo.Bias("column"), gelu()],
        "dropout": [fo.Bias("column"), gelu(), fo.Dropout("p")],
        "gate": [fo.Gate("full", "silu")],
    }
    for (chain, store), dtype, config in itertools.product(
        hidden.items(), DTYPES[:2], (None, *TILINGS)
    ):
        plans = functools.partial(_hidden, store, dtype, config)
        yield Case(f"MLP {chain} {short(dtype)} {config or 'as chosen'}", plans, ("sm_90",))


def _epilogue(kind, store):
    return kind(store=store).epilogue


def _after(epilogue, dtype):
    return row_calls(epilogue, [(*rows, 1024) for rows in ROWS], dtype)


def _factors(many, rows, n, k, dtype):
    if not many:
        return meta((2, rows // 2, k), dtype), meta((n, k), dtype)
    batch = (4, -(-rows // 1024))
    return meta((*batch, 256, k), dtype), meta((*batch, n, k), dtype)


#: Rows, columns and depth: large, of one tile, few rows, odd.
SIZES = ((8192, 4096, 1024), (16384, 1024, 1024), (512, 512, 64), (64, 256, 256), (1024, 260, 36))


def _products(kind, many, store, dtype, config):
    declared = kind(store=store)
    for rows, n, k in SIZES:
        x, w = _factors(many, rows, n, k, dtype)
        shape = (*x.shape[:-1], n)
        values = operands(declared.slots, shape, dtype)
        op = declared.that_adds(w, values)
        for way, second in (("", w), (" turned", w.mT.contiguous().mT)):
            for training in (True, False):
                call = functools.partial(product, op, x, second, {**values, "training": training})
                yield f"{rows} {n} {k}{way} {training}", _forced(config, call)


def _hidden(store, dtype, config):
    op = fo.MLP(hidden=store)
    epilogue = op.layers[0].epilogue
    for wanted in ((), tuple(name for name in ("column", "full") if name in epilogue.slots)):
        gradient = ProductBackward(epilogue, frozenset(wanted))
        for rows, n, k in SIZES:
            dy, w = meta((2, rows // 2, k), dtype), meta((k, n), dtype)
            z = meta((2, rows // 2, n), dtype)
            values = operands(epilogue.slots, tuple(z.shape), dtype)
            values["generator"] = (1, 2)
            call = functools.partial(product_backward, gradient, dy, w, z, values)
            yield f"{rows} {n} {k} of {wanted}", _forced(config, call)


def _forced(config, call):
    def plan():
        if config is None:
            return call()
        with force_launch(product=ProductConfig(config)):
            return call()

    return plan


# ----------------------------------------------------------------------------------------- digests


def short(dtype) -> str:
    """A dtype in few letters: fp16."""
    letters = re.sub(r"torch\.(b?)float(\d+)", r"\1fp\2", str(dtype))
    return letters.replace("bfp", "bf")


@contextlib.contextmanager
def planning(arch):
    """Plans are dictionaries, kernels `Stand`s, and every device is one of this architecture."""
    loaded = {}

    def kernel(variant):
        return loaded.setdefault(variant.key, Stand(variant))

    def plan(**fields):
        return fields

    with contextlib.ExitStack() as stack:
        for where, name, new in (
            (Target, "of", lambda device: Target.named(arch)),
            (Variant, "kernel", kernel),
            (Variant, "loaded", property(lambda one: loaded.get(one.key))),
            (_runtime, "Plan", plan),
        ):
            stack.enter_context(mock.patch.object(where, name, new))
        stack.enter_context(mock.patch.dict(os.environ, FUSEDOPS_BACKGROUND="0"))
        yield


def text_of(variant) -> str:
    """All that a kernel is built from."""
    source, *order = variant.order
    source = re.sub(r"^static_assert\(.*?\);\n", "", source, flags=re.M)  # makes no code
    return f"{source}\n{order}"


#: The digest of a kernel by its key.
_kernels: dict[object, str] = {}


def kernel_digest(stand) -> str:
    """A digest of what a kernel is built from."""
    if stand is None:
        return "None"
    variant = stand.variant
    key = (variant.key, variant.name, variant.declaration)
    if key not in _kernels:
        _kernels[key] = hash_of(text_of(variant))
    return _kernels[key]


def hash_of(text: str) -> str:
    """A short digest."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


#: The defaults of a plan's fields.
DEFAULTS = {"then": (), "returned": None, "cleared": (), "calls": 0}


def facts_of(plan, kernel) -> str:
    """All fields of a plan as text, `kernel` giving the word for a kernel."""
    if not isinstance(plan, dict):
        return repr(type(plan)) if not isinstance(plan, tuple) else str([type(one) for one in plan])
    fields = {**DEFAULTS, **plan}
    fields["kernel"] = kernel(fields["kernel"])
    fields["words"] = fields["words"].hex()
    fields["outputs"] = [(*one[:2], tuple(one[2])) for one in fields["outputs"]]
    fields["cleared"] = [*fields["cleared"]]
    fields["then"] = [(kernel(one), words.hex(), *rest) for one, words, *rest in fields["then"]]
    return "\n".join(f"{name} {fields[name]}" for name in sorted(fields))


def cases() -> Iterator[Case]:
    """All cases."""
    yield from row_cases()
    yield from product_cases()


def collect(kernel=kernel_digest, wanted=None) -> Iterator[tuple[str, str, str]]:
    """Of every call: its case and architecture, its name, and the facts of its plan."""
    for case in cases():
        for arch in case.archs:
            name = f"{case.name} {arch}"
            if wanted is not None and wanted not in name:
                continue
            with planning(arch):
                for called, plan in case.plans():
                    try:
                        facts = facts_of(plan(), kernel)
                    except fo.UnsupportedError as error:
                        facts = str(error)
                    yield name, called, facts


def cubins(count: int) -> dict[str, list[str]]:
    """Digests of the machine code of so many kernels; NVRTC names nothing by time or folder."""
    found = {}

    def note(stand):
        if stand is not None and stand.variant.tile is not None:
            found[kernel_digest(stand)] = stand.variant
        return kernel_digest(stand)

    for _ in collect(note):
        pass
    chosen = sorted(found)[:: max(1, len(found) // max(count, 1))][:count]
    return {
        f"cubin {name}": [
            hashlib.sha256(nvrtc.compile_cuda(found[name].source, found[name].arch)[0]).hexdigest()[
                :12
            ]
        ]
        for name in chosen
    }


def digests(count: int) -> dict[str, list[str]]:
    """The digest of each call of each case."""
    found: dict[str, list[str]] = {}
    for name, called, facts in collect():
        found.setdefault(name, []).append(hash_of(f"{called}\n{facts}"))
    return found | (cubins(count) if count else {})


def main() -> int:
    """Write the digests, or compare with those that were written; 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("write", "compare", "show"))
    parser.add_argument("file", help="the file; what names of cases contain, to show them")
    parser.add_argument("--cubins", type=int, default=0, help="compile so many of the variants")
    given = parser.parse_args()
    if given.action == "show":
        spell = lambda stand: "None" if stand is None else text_of(stand.variant)  # noqa: E731
        for name, called, facts in collect(spell, given.file):
            print(f"==== {name}: {called}\n{facts}")
        return 0
    found, file = digests(given.cubins), Path(given.file)
    plans = sum(map(len, found.values()))
    if given.action == "write":
        file.write_text(json.dumps(found, indent=0))
        print(f"{len(found)} cases, {plans} plans written")
        return 0
    wanted = json.loads(file.read_text())
    if not given.cubins:
        wanted = {name: one for name, one in wanted.items() if not name.startswith("cubin ")}
    differ = [name for name in wanted if name in found and found[name] != wanted[name]]
    lost = [name for name in wanted if name not in found]
    for name in (*differ[:20], *lost[:20]):
        print("differs:" if name in found else "is gone:", name)
    print(f"{len(found)} cases, {plans} plans: {len(differ)} differ, {len(lost)} gone")
    return 1 if differ or lost else 0


if __name__ == "__main__":
    sys.exit(main())
