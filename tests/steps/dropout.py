# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Dropout, whose mask is a function of a draw (docs/explanation/dropout.md)."""

import torch
from philox import keep_mask, keep_scale

from steps import Step


class Dropout(Step, word="dropout"):
    functor = "Dropout"
    examples = {
        "dropout": lambda make: (make.named(0.3),),
        "dropout_of_rows": lambda make: (make.named(0.3), (-1,)),
        "dropout_over_rows": lambda make: (make.named(0.4), (1, -2)),
        "dropout_of_samples": lambda make: (make.named(0.5), (1, 2, 3)),
    }
    alone = ("dropout_over_rows", "dropout_of_samples")

    @staticmethod
    def value(walk, v, p, shared=()):
        slot = next(walk.slots)
        if walk.draw is None:
            return v
        chance = walk.operands[p]
        shape = list(walk.x.shape)
        for dim in shared:  # elements along it have the draw of a tensor with one of them
            shape[dim] = 1
        kept = keep_mask(shape, *walk.draw, chance, slot, device=walk.x.device)
        walk.survivors = kept.expand(walk.x.shape)
        return torch.where(walk.survivors, v * keep_scale(chance), 0)

    @staticmethod
    def back(way, g, step, p, shared=()):
        if step.survivors is None:
            return g
        return g.select(step.survivors).times(keep_scale(way.operands[p]))
