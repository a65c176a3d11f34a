# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The residual connection, saved or not."""

import torch

from steps import Step


class Residual(Step, word="residual"):
    functor = "Residual"
    examples = {
        "residual": lambda make: (make.value(), -0.5, None),
        "alpha": lambda make: (make.value(), make.value(), None),
        "save": lambda make: (make.value(), 1.0, f"stream{len(make.operands)}"),
        "save_as": lambda make: (
            make.value(),
            1.0,
            f"stream{len(make.operands)}",
            torch.float32,
        ),
    }
    load_only = ("save", "save_as")
    alone = ("save_as",)

    @staticmethod
    def declare(kind, name, alpha, save, dtype=None):
        return kind(name, alpha=alpha, save=save, dtype=dtype)

    @staticmethod
    def stream(x, operands, name, alpha, save, dtype=None):
        """The stream's name and dtype; None where nothing is saved."""
        like = operands[name] if isinstance(operands[name], torch.Tensor) else x
        return None if save is None else (save, dtype or like.dtype)

    @staticmethod
    def value(walk, v, name, alpha, save, dtype=None):
        factor = walk.operand(alpha) if isinstance(alpha, str) else alpha
        v = v + factor * walk.operand(name)
        return v if save is None else walk.save(save, v)

    @staticmethod
    def back(way, g, step, name, alpha, save, dtype=None):
        if save in way.upstream:
            g = way.join(save, g)
        way.give(name, g.times(way.operand(alpha) if isinstance(alpha, str) else alpha))
        if isinstance(alpha, str):
            way.give(alpha, g.times(way.operand(name)))
        return g


class _Output(Step):
    """A step that returns the value as a further output."""

    @staticmethod
    def declare(kind, name, dtype):
        return kind(name, dtype=dtype)

    @staticmethod
    def stream(x, operands, name, dtype):
        return name, dtype or x.dtype


class Tap(_Output, word="tap"):
    functor = "Tap"
    store_only = True
    examples = {
        "tap": lambda make: (f"tap{make.number()}", None),
        "tap_as": lambda make: (f"tap{make.number()}", torch.float32),
    }
    alone = ("tap_as",)

    @staticmethod
    def value(walk, v, name, dtype):
        walk.outputs[name] = v
        return v

    @staticmethod
    def back(way, g, step, name, dtype):
        return g + way.arriving(name) if name in way.upstream else g


class Save(_Output, word="stream"):
    functor = "Save"
    examples = {
        "stream": lambda make: (f"saved{make.number()}", None),
        "stream_as": lambda make: (f"saved{make.number()}", torch.float32),
    }
    load_only = ("stream", "stream_as")
    alone = ("stream_as",)

    @staticmethod
    def value(walk, v, name, dtype):
        return walk.save(name, v)

    @staticmethod
    def back(way, g, step, name, dtype):
        return way.join(name, g) if name in way.upstream else g
