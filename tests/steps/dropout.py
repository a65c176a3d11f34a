# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Dropout, whose mask is a function of a draw (docs/dropout.md)."""

import torch
from philox import keep_mask, keep_scale

from steps import Step


class Dropout(Step, word="dropout"):
    functor = "Dropout"
    examples = {"dropout": lambda make: (make.named(0.3),)}

    @staticmethod
    def value(walk, v, p):
        slot = next(walk.slots)
        if walk.draw is None:
            return v
        chance = walk.operands[p]
        walk.survivors = keep_mask(walk.x.shape, *walk.draw, chance, slot, device=walk.x.device)
        return torch.where(walk.survivors, v * keep_scale(chance), 0)

    @staticmethod
    def back(way, g, step, p):
        if step.survivors is None:
            return g
        return g.select(step.survivors).times(keep_scale(way.operands[p]))
