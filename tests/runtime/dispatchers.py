# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Dispatchers over a few lines of C, so that nothing but the runtime is under test."""

from __future__ import annotations

import struct

import torch

from fusedops import _runtime
from fusedops.bind.generator import draw

PROBABILITY, NUMBER, TENSOR, DESCRIBED = 1, 2, 4, 8
POINTER, OUTPUT = _runtime.POINTER, _runtime.OUTPUT

KERNELS = r"""
#include <stdint.h>

/* out = x * scale + bias (a row) */
struct Affine { const float *x, *bias; float *out; int64_t columns; float scale, kept; };
void affine(const void* words, int64_t begin, int64_t end) {
  const struct Affine* a = words;
  for (int64_t r = begin; r < end; ++r)
    for (int64_t c = 0; c < a->columns; ++c)
      a->out[r * a->columns + c] = a->x[r * a->columns + c] * a->scale + (a->bias ? a->bias[c] : 0);
}

/* out[r] += 1, so that a row computed twice or never shows */
struct Count { int64_t* out; };
void count(const void* words, int64_t begin, int64_t end) {
  const struct Count* a = words;
  for (int64_t r = begin; r < end; ++r) __atomic_fetch_add(&a->out[r], 1, __ATOMIC_RELAXED);
}

/* the argument itself, word by word */
struct Echo { int64_t* out; int64_t words[15]; };
void echo(const void* words, int64_t begin, int64_t end) {
  const struct Echo* a = words;
  for (int i = 0; i < 15; ++i) a->out[i] = a->words[i];
}
"""


class Affine:
    """A dispatcher of out = x * s + b for two-dimensional x; keeps what slow was given."""

    def __init__(
        self,
        library,
        slots=(("b", TENSOR), ("s", NUMBER), ("p", PROBABILITY | NUMBER)),
        grad=None,
    ):
        self.kernel = _runtime.load_host(library, "affine")
        self.reasons = []
        self.calls = []
        self.dispatch = _runtime.Dispatcher("affine", slots, self.slow, draw, None, grad)

    def slow(self, reason, x, operands, options):
        self.reasons.append(reason)
        self.calls.append((x, operands, options))
        if reason != "miss":
            return reason
        columns = x.shape[-1]
        rows = x.numel() // max(columns, 1)
        words = struct.pack("<QQQqff", 0, 0, 0, columns, 1.0, 7.0)
        patches = [(0, _runtime.POINTER, 0), (2, _runtime.OUTPUT, 0)]
        if isinstance(operands.get("b"), torch.Tensor):
            patches.append((1, _runtime.POINTER, 1))
        if "s" in operands:
            patches.append((4, _runtime.FLOAT32, 2))
        outputs = [(2, 32, tuple(x.shape))]
        return _runtime.Plan(self.kernel, words, patches, outputs, rows, 8, 0, 0, 0, 0, "info")

    def __call__(self, *args, **keywords):
        return self.dispatch(*args, **keywords)


class Echo:
    """A dispatcher whose kernel returns its own argument."""

    def __init__(self, library, patches, words=bytes(128), draws=0, slots=(("v", NUMBER),)):
        self.kernel = _runtime.load_host(library, "echo")
        self.drawn = []

        def slow(reason, x, operands, options):
            assert reason == "miss"
            all_patches = [(0, _runtime.OUTPUT, 0), *patches]
            outputs = [(0, 64, (15,))]
            return _runtime.Plan(
                self.kernel, words, all_patches, outputs, 1, 1, 0, 0, 0, draws, None
            )

        def draw(device_type, device_index, generator, count):
            self.drawn.append((device_type, device_index, generator, count))
            return -2, 40

        self.dispatch = _runtime.Dispatcher("echo", slots, slow, draw)

    def __call__(self, **keywords):
        return struct.pack("<15q", *self.dispatch(torch.ones(1), **keywords).tolist())


class Chain:
    """y = (x * s) * 3 + b in two launches, by way of a scratch tensor; both may be returned."""

    def __init__(self, library, returned=1, grains=(8, 8), result=None):
        kernel = _runtime.load_host(library, "affine")

        def slow(reason, x, operands, options):
            if reason != "miss":
                return reason
            rows, columns = x.shape
            first = struct.pack("<QQQqff", 0, 0, 0, columns, 1.0, 0.0)
            second = struct.pack("<QQQqff", 0, 0, 0, columns, 3.0, 0.0)
            to_scratch = [(0, POINTER, 0), (2, OUTPUT, 1), (4, _runtime.FLOAT32, 2)]
            to_y = [(0, OUTPUT, 1), (1, POINTER, 1), (2, OUTPUT, 0)]
            outputs = [(2, 32, (rows, columns))] * 2
            then = [(kernel, second, to_y, rows, grains[1], 0, 0, 0)]
            return _runtime.Plan(
                kernel, first, to_scratch, outputs, rows, grains[0], 0, 0, 0, 0, None,
                then=then, returned=returned,
            )  # fmt: skip

        slots = [("b", TENSOR), ("s", NUMBER)]
        self.dispatch = _runtime.Dispatcher("chain", slots, slow, draw, result)

    def __call__(self, *args, **keywords):
        return self.dispatch(*args, **keywords)


def counting(library, grain=1):
    kernel = _runtime.load_host(library, "count")

    def slow(reason, x, operands, options):
        assert reason == "miss"
        patches = [(0, _runtime.OUTPUT, 0)]
        rows = x.shape[0]
        outputs = [(0, 64, (rows,))]
        return _runtime.Plan(kernel, bytes(8), patches, outputs, rows, grain, 0, 0, 0, 0, None)

    return _runtime.Dispatcher("count", [], slow, draw)
