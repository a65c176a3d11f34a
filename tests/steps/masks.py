# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What takes elements out of a row, and what counts the distance of a query from a key."""

import torch

from steps import Step


class Masking(Step):
    """A mask: the elements that are not kept become -inf, last of all."""

    softmax_only = True
    masks = True


class Mask(Masking, word="mask"):
    functor = "Mask"
    examples = {"mask": lambda make: (make.flags(-0.6),)}

    @staticmethod
    def kept(walk, mask):
        return ~walk.operands[mask]


class Keep(Masking, word="keep"):
    functor = "Mask"
    examples = {"keep": lambda make: (make.flags(0.9),)}
    alone = ("keep",)

    @staticmethod
    def declare(kind, mask):
        return kind(mask, keep=True)

    @staticmethod
    def kept(walk, mask):
        return walk.operands[mask]


class Causal(Masking, word="causal"):
    functor = "Causal"
    examples = {"causal": lambda make: ("bottom-right", 1)}

    @staticmethod
    def declare(kind, align, offset):
        return kind(align=align, offset=offset)

    @staticmethod
    def kept(walk, align, offset):
        return lower_triangle(walk.x, align, offset)


class Window(Masking, word="window"):
    functor = "Window"
    examples = {"window": lambda make: (3, 2, "top-left", 0)}

    @staticmethod
    def declare(kind, left, right, align, offset):
        return kind(left, right, align=align, offset=offset)

    @staticmethod
    def kept(walk, left, right, align, offset):
        """From `left` columns before the diagonal to `right` columns after it."""
        kept = torch.ones(walk.x.shape[-2:], dtype=torch.bool, device=walk.x.device)
        if right is not None:
            kept &= lower_triangle(walk.x, align, offset + right)
        if left is not None:
            kept &= ~lower_triangle(walk.x, align, offset - left - 1)
        return kept


class Lengths(Masking, word="lengths"):
    functor = "Lengths"
    examples = {
        "lengths": lambda make: (
            make.named(torch.tensor([5, 8, 3, 0, 7], device=make.device)[:, None]),
        )
    }

    @staticmethod
    def kept(walk, lengths):
        return torch.arange(walk.x.shape[-1], device=walk.x.device) < walk.operands[lengths]


class Segments(Masking, word="segments"):
    functor = "Segments"
    examples = {
        "segments": lambda make: (
            # Ids that a float, or the lower half of a word, takes for one another.
            make.named(
                torch.tensor([2**40, 2**40 + 1, 3, 2**32 + 3, 9], device=make.device)[:, None]
            ),
            make.named(
                torch.tensor(
                    [2**40, 2**40, 2**40 + 1, 3, 3, 2**32 + 3, 2**32 + 3, 4], device=make.device
                )
            ),
        ),
        "segments_of": lambda make: (
            make.named(torch.tensor([1, 1, 0, 3, -2], device=make.device).short()[:, None]),
            make.named(torch.tensor([1, 1, 0, 1, 0, 3, 3, 255], device=make.device).byte()),
        ),
    }
    alone = ("segments_of",)

    @staticmethod
    def kept(walk, queries, keys):
        return walk.operands[queries].long() == walk.operands[keys].long()


class Alibi(Step, word="alibi"):
    functor = "Alibi"
    softmax_only = True
    examples = {"alibi": lambda make: (make.row_value(), "top-left", 1)}

    @staticmethod
    def declare(kind, slopes, align, offset):
        return kind(slopes, align=align, offset=offset)

    @staticmethod
    def value(walk, v, slopes, align, offset):
        return v - walk.operand(slopes) * distance(walk.x, align, offset).to(walk.compute)

    @staticmethod
    def back(way, g, step, slopes, align, offset):
        way.give(slopes, g.times(-distance(way.x, align, offset)))
        return g


def lower_triangle(x, align, offset):
    """True where the column is at most the row (plus `offset`), from either corner."""
    rows, columns = x.shape[-2:]
    row = torch.arange(rows, device=x.device)[:, None]
    column = torch.arange(columns, device=x.device)
    return column <= row + offset + (columns - rows if align == "bottom-right" else 0)


def distance(x, align, offset):
    """How far each column is from the diagonal (plus `offset`), from either corner."""
    rows, columns = x.shape[-2:]
    first = offset + (columns - rows if align == "bottom-right" else 0)
    on_diagonal = torch.arange(first, first + rows, device=x.device)
    return (on_diagonal[:, None] - torch.arange(columns, device=x.device)).abs()
