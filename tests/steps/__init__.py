# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What every functor means, written by hand: its value, its gradients, its declaration, examples.

A step of a `references.Chain` is a word and arguments, as ("scale", "s"). Each class in this folder
is one word; `STEPS` has them all. Nothing here comes from fusedops: a class names its functor, and
`cases.functor` declares it.
"""

import importlib
import pkgutil

__all__ = ["STEPS", "Step", "examples"]

#: The steps by word.
STEPS = {}


class Step:
    """One word. The members are static: a class is a record of functions.

    Attributes:
        word: The word.
        functor: The name of the class in fusedops that says the same.
        softmax_only: Whether it may stand in the LOAD of softmax, log-softmax and map alone.
        store_only: Whether it may stand in a STORE alone.
        masks: Whether it takes elements out of a row.
        load_only: The examples that may stand in a LOAD alone.
        alone: The examples that differ from another one in nothing that a neighbour in a chain
            sees; tests of pairs leave them out.
        examples: By name, functions that get a `test_gradients.Making`, which makes operands, and
            return the step's arguments. Tests run each of them in every op, forward and backward.
    """

    functor: str
    softmax_only = False
    store_only = False
    masks = False
    load_only = ()
    alone = ()
    examples = {}

    def __init_subclass__(cls, word=None):
        if word is not None:
            cls.word = word
            STEPS[word] = cls

    @staticmethod
    def declare(kind, *arguments):
        """The functor, of its class and the step's arguments."""
        return kind(*arguments)

    @staticmethod
    def value(walk, v, *arguments):
        """What becomes of the value v; `walk` is a `references.Walk`."""
        return v

    @staticmethod
    def stream(x, operands, *arguments):
        """The name and the dtype of what the step saves; None for one that saves nothing."""
        return None

    @staticmethod
    def kept(walk, *arguments):
        """True where an element stays in its row; None for what masks nothing."""
        return None

    @staticmethod
    def back(way, g, step, *arguments):
        """The gradient of what the step saw, from the gradient g of what it made.

        Args:
            way: A `gradients.Way`, which takes the gradients of operands.
            g: A `gradients.Gradient`.
            step: The `references.Taken` step: what it saw and which elements it kept.
            arguments: The step's arguments.
        """
        return g


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def examples(op, side):
    """The names of the examples that may stand on a side of an op, those of masks last."""
    softmax = side == "load" and op.endswith("softmax")
    steps = sorted(STEPS.values(), key=lambda step: step.softmax_only)
    return tuple(
        name
        for step in steps
        if (softmax or not step.softmax_only) and (side == "store" or not step.store_only)
        for name in step.examples
        if side == "load" or name not in step.load_only
    )
