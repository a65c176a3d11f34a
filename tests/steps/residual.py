# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The residual connection, saved or not."""

from steps import Step


class Residual(Step, word="residual"):
    functor = "Residual"
    examples = {
        "residual": lambda make: (make.value(), -0.5, None),
        "alpha": lambda make: (make.value(), make.value(), None),
        "save": lambda make: (make.value(), 1.0, f"stream{len(make.operands)}"),
    }
    load_only = ("save",)

    @staticmethod
    def declare(kind, name, alpha, save):
        return kind(name, alpha=alpha, save=save)

    @staticmethod
    def value(walk, v, name, alpha, save):
        factor = walk.operand(alpha) if isinstance(alpha, str) else alpha
        v = v + factor * walk.operand(name)
        return v if save is None else walk.save(save, v)

    @staticmethod
    def back(way, g, step, name, alpha, save):
        if save in way.upstream:
            g = way.join(save, g)
        way.give(name, g.times(way.operand(alpha) if isinstance(alpha, str) else alpha))
        if isinstance(alpha, str):
            way.give(alpha, g.times(way.operand(name)))
        return g
