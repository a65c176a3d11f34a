# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Capped and gated values, with the derivatives of the activations written out."""

import math

import torch

from steps import Step


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def phi(x):
    """The normal distribution's cumulative function and density."""
    return torch.erfc(-x / math.sqrt(2)) / 2, torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def gelu_tanh(x):
    factor = math.sqrt(2 / math.pi)
    bent = torch.tanh(factor * (x + 0.044715 * x**3))
    slope = factor * (1 + 3 * 0.044715 * x**2)
    return x * (1 + bent) / 2, (1 + bent) / 2 + x * (1 - bent**2) * slope / 2


#: Value and derivative of each activation. No second derivative is larger than 1.2.
ACTIVATIONS = {
    "silu": lambda x: (x * sigmoid(x), sigmoid(x) * (1 + x * (1 - sigmoid(x)))),
    "gelu": lambda x: (x * phi(x)[0], phi(x)[0] + x * phi(x)[1]),
    "gelu_tanh": gelu_tanh,
    "sigmoid": lambda x: (sigmoid(x), sigmoid(x) * (1 - sigmoid(x))),
}


class Softcap(Step, word="softcap"):
    functor = "Softcap"
    examples = {
        "softcap": lambda make: (make.named(1.5),),
        "softcap_of": lambda make: (make.positive(),),
    }
    alone = ("softcap_of",)

    @staticmethod
    def value(walk, v, cap):
        cap = walk.operand(cap)
        return cap * torch.tanh(v / cap)

    @staticmethod
    def back(way, g, step, cap):
        limit = way.operand(cap)
        share = step.saw / limit
        bent = torch.tanh(share)
        slope = 1 / torch.cosh(share) ** 2
        # Each of the difference's terms is rounded, and what was seen is uncertain by itself.
        size = 1 + share.abs()
        way.give(cap, type(g)(g.each * (bent - share * slope), g.scale * size))
        return type(g)(g.each * slope, g.scale * size)


class Gate(Step, word="gate"):
    functor = "Gate"
    examples = {
        "gate": lambda make: (make.value(), "silu", "gate"),
        "gate_gelu": lambda make: (make.value(), "gelu", "gate"),
        "gate_value": lambda make: (make.value(), "silu", "value"),
        "gate_value_gelu": lambda make: (make.value(), "gelu", "value"),
        "gate_value_tanh": lambda make: (make.value(), "gelu_tanh", "value"),
        "gate_sigmoid": lambda make: (make.value(), "sigmoid", "gate"),
        "gate_value_sigmoid": lambda make: (make.value(), "sigmoid", "value"),
    }
    alone = (
        "gate_gelu",
        "gate_value_gelu",
        "gate_value_tanh",
        "gate_sigmoid",
        "gate_value_sigmoid",
    )

    @staticmethod
    def value(walk, v, gate, activation, of):
        function, by = ACTIVATIONS[activation], walk.operand(gate)
        if of == "value":
            return function(v)[0] * by
        return v * function(torch.as_tensor(by, dtype=v.dtype, device=v.device))[0]

    @staticmethod
    def back(way, g, step, gate, activation, of):
        saw, by = step.saw, way.operand(gate)
        by = torch.as_tensor(by, dtype=saw.dtype, device=saw.device)
        value, slope = ACTIVATIONS[activation](saw if of == "value" else by)
        if of == "value":
            way.give(gate, type(g)(g.each * value, g.scale * (saw.abs() + way.centre)))
            size = 1 + saw.abs() + way.centre
            return type(g)(g.each * slope * by, g.scale * size * by.abs())
        size = (saw.abs() + way.centre) * (1 + by.abs())
        way.give(gate, type(g)(g.each * saw * slope, g.scale * size))
        return g.times(value)
