# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Functors that add, multiply and round."""

import torch

from steps import Step


class Scale(Step, word="scale"):
    functor = "Scale"
    examples = {"scale": lambda make: (make.value(),)}

    @staticmethod
    def value(walk, v, scale):
        return v * walk.operand(scale)

    @staticmethod
    def back(way, g, step, scale):
        way.give(scale, g.times(step.saw))
        return g.times(way.operand(scale))


class Bias(Step, word="bias"):
    functor = "Bias"
    examples = {"bias": lambda make: (make.value(),)}

    @staticmethod
    def value(walk, v, bias):
        return v + walk.operand(bias)

    @staticmethod
    def back(way, g, step, bias):
        way.give(bias, g)
        return g


class Affine(Step, word="affine"):
    functor = "Affine"
    examples = {
        "affine": lambda make: (make.value(), make.value()),
        "gamma": lambda make: (make.value(), None),
        "beta": lambda make: (None, make.value()),
        "zero_centred": lambda make: (make.value(), make.value(), True),
    }
    alone = ("gamma", "zero_centred")

    @staticmethod
    def declare(kind, gamma, beta, zero_centred=False):
        return kind(gamma, beta, zero_centred=zero_centred)

    @staticmethod
    def value(walk, v, gamma, beta, zero_centred=False):
        v = v if gamma is None else v * (zero_centred + walk.operand(gamma))
        if beta is None:
            return v
        walk.seen.append(v)  # a value that is rounded on the way
        return v + walk.operand(beta)

    @staticmethod
    def back(way, g, step, gamma, beta, zero_centred=False):
        if beta is not None:
            way.give(beta, g)
        if gamma is None:
            return g
        saw = step.saw
        way.give(gamma, type(g)(g.each * saw, g.scale * (saw.abs() + way.centre)))
        return g.times(zero_centred + way.operand(gamma))


class Cast(Step, word="cast"):
    functor = "Cast"
    examples = {"cast": lambda make: (torch.float16,)}

    @staticmethod
    def value(walk, v, dtype):
        return v.to(dtype).to(walk.compute)

    @staticmethod
    def back(way, g, step, dtype):
        return type(g)(g.each.to(dtype).to(way.compute), g.scale)
