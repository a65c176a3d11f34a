# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Compare the generated code of two versions of the package: what a pure refactoring must not move.

    python tests/same_code.py write before.json             # at the one commit
    python tests/same_code.py compare before.json           # at the other
    python tests/same_code.py write before.json --cubins 20  # compiles some of the variants as well

A case is a declaration, a dtype, a row length, an architecture and a pass: forward, gradient, or
second stage of a gradient. For each the C++ text, the words of the kernel's argument and the launch
are reduced to a digest. Nothing is compiled without --cubins: some thousand cases take seconds.
"""

import argparse
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import fusedops as fo
from fusedops.bind.bind import bind
from fusedops.generate.target import Target
from fusedops.jit import nvrtc
from fusedops.run.backward import Backward
from fusedops.run.forward import describe
from fusedops.run.gradient import Gradient, described

ARCHS = ("x86-64-v3", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
COLUMNS = (1, 8, 33, 257, 1023, 1024, 4096, 5120, 12289, 16384, 30522, 65536, 151936)
FEW_COLUMNS = (33, 1024, 12289)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
IMAGES = ((64, 64), (14, 14), (7, 7))  # of group norms: whole packs a channel, parts, odd
ROWS = (3, 2, 40)  # in three dimensions, so that operands can be broadcast over some of them


@fo.functor
def softcap(x, cap):
    return cap * torch.tanh(x / cap)


#: What may stand around a softmax, and around a norm.
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
}
OPS = (
    (fo.Softmax, MASKING),
    (fo.LogSoftmax, MASKING),
    (fo.LayerNorm, NORMING),
    (fo.RMSNorm, NORMING),
)


def operands(names, columns, dtype):
    """A value for each of these names; tensors have no memory."""

    def tensor(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype, device="meta")

    known = {
        "s": 0.5,
        "p": 0.25,
        "row": tensor(*ROWS, 1),
        "full": tensor(*ROWS, columns),
        "pair": tensor(1, *ROWS[1:], columns),
        "mask": tensor(ROWS[0], 1, 1, columns, dtype=torch.bool),
        "n": tensor(ROWS[0], 1, 1, 1, dtype=torch.int64),
        "slopes": tensor(ROWS[1], 1, 1),
        "column": tensor(columns),
        "gamma": tensor(columns),
        "beta": tensor(columns),
    }
    return {name: known[name] for name in names}


def calls() -> Iterator[tuple[str, object]]:
    """Every call by name, checked."""
    for (kind, chains), dtype in itertools.product(OPS, DTYPES):
        for name, arguments in chains.items():
            op = kind(**arguments)
            for columns in COLUMNS if dtype is torch.float16 else FEW_COLUMNS:
                x = torch.empty((*ROWS, columns), dtype=dtype, device="meta")
                bound = bind(op, x, operands(op.slots, columns, dtype), {})
                yield f"{kind.__name__} {name} {dtype} {columns}", bound
    op = fo.GroupNorm(4, store=[fo.Affine("gamma", "beta")])
    for image, dtype in itertools.product(IMAGES, DTYPES):
        x = torch.empty((3, 20, *image), dtype=dtype, device="meta")
        v = torch.empty(20, dtype=dtype, device="meta")
        yield f"GroupNorm {image} {dtype}", op.bind(x, {"gamma": v, "beta": v})


def launch_of(tile) -> tuple[object, ...]:
    """All of a schedule that a launch depends on."""
    grids = (tile.grid(5), tile.grid(10**9))
    blocks = (tile.threads_per_block, tile.min_blocks_per_sm, tile.cluster, tile.rows_per_block)
    return (tile.cpp, *blocks, tile.shared_bytes, *grids)


def passes(bound, arch) -> Iterator[tuple[str, object, str]]:
    """What a call runs on an architecture: the pass, its variant, and what else a plan holds."""
    target = Target.named(arch)
    for keep in (False, True):
        info = describe(bound._replace(keep=keep), target)
        launch = info.tile and launch_of(info.tile)
        facts = f"{info.words.hex()} {info.patches} {launch} {tuple(info.geometry)} {info.draws}"
        yield "forward" + " kept" * keep, info.variant, facts
    floating = [k for k, v in bound.operands.items() if getattr(v, "is_floating_point", bool)()]
    for wanted in ({"x"}, {"x", *floating}):
        gradient = Gradient(bound.op, frozenset(wanted), frozenset(bound.op.saves))
        told: Backward = gradient.describe(*described(bound, gradient), target)
        if told.apart:
            continue
        for stage, one in (("gradient", told.first), ("sums", told.second)):
            if one is not None:
                slices = tuple(told.slices)
                sums = told.targets.shared_sums
                facts = f"{one[1].hex()} {one[2:]} {slices} {told.outputs} {sums}"
                yield f"{stage} of {len(wanted)}", one[0], facts


def every() -> Iterator[tuple[str, object, str]]:
    """All cases: name, variant, facts."""
    for name, bound in calls():
        for arch in ARCHS:
            try:
                for part, variant, facts in passes(bound, arch):
                    yield f"{name} {arch} {part}", variant, facts
            except fo.UnsupportedError as error:
                yield f"{name} {arch}", None, str(error)


def digest(variant, facts: str) -> str:
    """What must be equal: text, cache name, words and launch."""
    if variant is not None:
        source, *order = variant.order
        source = re.sub(r"^static_assert\(.*?\);\n", "", source, flags=re.M)  # makes no code
        facts = f"{source}\n{order}\n{facts}"
    facts = facts.replace(", repeats=1)", ")")  # its default, which older versions do not know
    return hashlib.sha256(facts.encode()).hexdigest()[:20]


def cubin(variant) -> str:
    """A digest of the machine code; NVRTC names nothing by the time or the folder."""
    return hashlib.sha256(nvrtc.compile_cuda(variant.source, variant.arch)[0]).hexdigest()[:20]


def collect(cubins: int) -> dict[str, str]:
    """The digest of each case, and of the machine code of some."""
    found, on_gpu = {}, []
    for name, variant, facts in every():
        found[name] = digest(variant, facts)
        if variant is not None and variant.tile is not None:
            on_gpu.append((name, variant))
    if cubins:
        for name, variant in on_gpu[:: max(1, len(on_gpu) // cubins)][:cubins]:
            found[f"cubin of {name}"] = cubin(variant)
    return found


def main() -> int:
    """Write the digests, or compare with those that were written; 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--cubins", type=int, default=0, help="compile so many of the variants")
    given = parser.parse_args()
    found = collect(given.cubins)
    if given.action == "write":
        given.file.write_text(json.dumps(found, indent=0))
        print(f"{len(found)} cases written")
        return 0
    wanted = json.loads(given.file.read_text())
    differ = [name for name in wanted if name in found and found[name] != wanted[name]]
    lost = wanted.keys() - found.keys()
    if not given.cubins:
        lost = {name for name in lost if not name.startswith("cubin of ")}
    for name in (*differ[:20], *sorted(lost)[:20]):
        print("differs:" if name in differ else "is gone:", name)
    print(f"{len(found)} cases, {len(differ)} differ, {len(lost)} gone")
    return 1 if differ or lost else 0


if __name__ == "__main__":
    sys.exit(main())
