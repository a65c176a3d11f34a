# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of a row, joined from parts of its classes: blocks of a product, or columns of ranks.

Of each part a `CrossEntropy` of its own (`constants_of_part`) gives a few numbers of each row. With
m a part, V_m its share of all classes, v_t the logit of the target:

- lse = log(sum_m exp(lse_m));
- v_t is that of the part that has the target;
- the mean of all logits, for label smoothing, is sum_m V_m mean_m;
- the entropy is sum_m exp(lse_m - lse) (entropy_m + lse - lse_m), since lse_m - entropy_m is the
  mean of a part's logits by its softmax;
- with P_m the sum of a part's weights, a soft target's loss is sum_m (loss_m + P_m (lse - lse_m));
- the target is correct where it is so in its part, and no part has a larger logit.

All of it is computed by torch. Where the parts are those of ranks, its autograd says how much each
part's numbers count; a product's are differentiated at once, by what is kept of whole rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fusedops.declare.operator import RowParts

#: The target of an ignored row in a part, whose targets are counted from its first class.
_IGNORED = -1


class _Shared(NamedTuple):
    """A number of a row that each rank finds of its own classes."""

    name: str  # that of a result of the part's op, or what is made of these
    said: str  # what it is, for messages
    of_none: float = 0.0  # what it is of no classes


#: In the order in which they lie side by side.
_SHARED = (
    _Shared("lse", "the logarithm of each row's sum", -torch.inf),
    _Shared("loss", "its loss"),
    _Shared("weight", "the sum of its weights"),
    _Shared("target", "its target's logit"),
    _Shared("mean", "the mean of its logits"),
    _Shared("entropy", "its entropy"),
    _Shared("largest", "its largest logit", -torch.inf),
    _Shared("correct", "whether that is its target's"),
)


def constants_of_part(constants: Mapping[str, Any]) -> dict[str, Any]:
    """The constants of the op that a part's numbers come from, of those of the whole loss."""
    smooths = constants["label_smoothing"] > 0
    correct = "correct" in constants
    flags = {"lse": True, "log_prob": smooths, "entropy": "entropy" in constants}
    flags |= {"largest": correct or "largest" in constants, "correct": correct}
    flags["soft"] = "soft" in constants
    return {
        "ignore_index": _IGNORED,
        "label_smoothing": float(smooths),  # 1: the loss is then lse minus the mean
        "reduction": "none",
        **{name: True for name, one in flags.items() if one},
    }


def target_of_part(
    labels: Tensor, ignored: Tensor, first: int, classes: int
) -> tuple[Tensor, Tensor]:
    """The targets of a part that has so many classes from this one on, and the rows they lie in.

    The target of a row whose class lies elsewhere is the part's first: it is not read. A part that
    has no classes ignores all rows.
    """
    inside = (labels >= first) & (labels < first + classes) & ~ignored
    elsewhere = 0 if classes else _IGNORED
    return torch.where(inside, labels - first, elsewhere).masked_fill(ignored, _IGNORED), inside


def value_of_target(found: Mapping[str, Tensor]) -> Tensor:
    """The logit of each row's target, of a part's numbers."""
    lse = found["lse"]
    at = lse + found["log_prob"] if "log_prob" in found else lse - found["loss"]
    return torch.where(lse == -torch.inf, -torch.inf, at)  # a part without classes


def mean_of_part(found: Mapping[str, Tensor]) -> Tensor:
    """The mean of a part's logits, where there is label smoothing."""
    return found["lse"] - found["loss"]


class LossOfParts:
    """The part of `CrossEntropy` by which ranks that have some classes of a row find its loss."""

    constants: Mapping[str, Any]  # those of the declaration
    outputs: tuple[str, ...]  # the names of its results
    masked: bool  # whether its LOAD masks classes
    saves: Any  # the streams that its LOAD saves
    soft: bool  # whether the target is a weight for each class

    def is_ignored(self, target: Tensor) -> Tensor:
        """Whether each target is `ignore_index`; in 64 bits, for in uint8 -100 is the class 156."""
        found: Tensor = target.long() == self.constants["ignore_index"]
        return found

    def is_counted(self, target: Tensor) -> Tensor:
        """Whether each target is not `ignore_index`, by one kernel."""
        found: Tensor = target.long() != self.constants["ignore_index"]
        return found

    @property
    def row_parts(self) -> RowParts:
        said = ", ".join(one.said for one in self._shared)
        own = constants_of_part(self.constants)
        return RowParts(len(self._shared), said, scale=False, own=own)

    @property
    def _shared(self) -> list[_Shared]:
        """The numbers of a row that ranks share, in their order."""
        own = constants_of_part(self.constants)
        smooths = self.constants["label_smoothing"] > 0
        there = {*own, *(("loss", "weight") if self.soft else ("target",)), *["mean"] * smooths}
        return [one for one in _SHARED if one.name in there]

    @property
    def whole_only(self) -> str:
        """What of the declaration needs all classes of a row in one place; empty for nothing."""
        smooths = self.constants["label_smoothing"] > 0
        if self.soft and smooths:
            return "label smoothing of a soft target"
        if self.saves:
            return "a saved stream"
        if self.masked and smooths:
            return "label smoothing over the classes that masks leave"
        return ""

    def target_of_part(
        self, target: Tensor, first: int, shape: Sequence[int], dim: int
    ) -> tuple[Tensor, Tensor]:
        """The target of a part of the classes, and what it holds of each row's target.

        That is whether the target is among its classes, or the sum of a soft target's weights.

        Args:
            target: That of all classes, of size 1 along them; a soft one of the part alone.
            first: The number of the part's first class.
            shape: That of the part's logits.
            dim: Their dimension of classes.
        """
        if self.soft:
            double = target.dtype is torch.float64
            return target, target.expand(shape).sum(dim, dtype=None if double else torch.float32)
        local, inside = target_of_part(target.long(), self.is_ignored(target), first, shape[dim])
        return local, inside.squeeze(dim)

    def part_of_row(self, found: Mapping[str, Tensor], held: Tensor, share: float) -> Tensor:
        """The numbers of rows that a rank shares with the others, in a last dimension of their own.

        Args:
            found: What the op with the constants `row_parts.own` gives of the rank's classes.
            held: What these hold of each row's target (`target_of_part`).
            share: How many of all classes they are, in [0, 1].
        """
        made = {**found}
        if self.soft:
            made["weight"] = held.to(found["lse"].dtype)
        else:
            made["target"] = torch.where(held, value_of_target(found), 0.0)
        if self.constants["label_smoothing"] > 0:
            made["mean"] = mean_of_part(found) * share
        if "correct" in found:
            made["correct"] = torch.where(held, found["correct"], 0.0)
        numbers = [made[one.name] for one in self._shared]
        if share == 0:  # of no classes, made of these since all ranks must have the same graph
            everywhere = torch.ones_like(held, dtype=torch.bool)
            numbers = [
                number.masked_fill(everywhere, one.of_none)
                for number, one in zip(numbers, self._shared, strict=True)
            ]
        return torch.stack(numbers, -1)

    def of_row_parts(self, numbers: Tensor, target: Tensor, classes: int) -> dict[str, Tensor]:
        """What the op returns of each row, by the numbers of all ranks, of shape (*rows, ranks, k).

        The numbers are those of `part_of_row`.
        """
        names = [one.name for one in self._shared]
        parts = dict(zip(names, numbers.movedim(-2, 0).unbind(-1), strict=True))
        if self.soft:
            return self._joined_weights(parts, parts["loss"], parts["weight"])
        mean = parts["mean"].sum(0) if "mean" in parts else None
        return self.joined(parts, parts["target"].sum(0), mean, target, classes)

    def numbers_of_blocks(
        self, found: Mapping[str, Tensor], target: Tensor, columns: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The numbers of blocks that `joined_blocks` takes, and the logit of each row's target.

        `found` is what the op with the constants `row_parts.own` gives of each block, in a first
        dimension of its own. Each block has `columns` columns, but the last one may have fewer.
        """
        parts, last = dict(found), len(found["lse"]) - 1
        block = (target // columns).clamp(0, last)
        if "correct" in parts:
            numbers = torch.arange(last + 1, device=block.device)
            elsewhere = numbers.view(-1, *[1] * block.dim()) != block
            parts["correct"] = parts["correct"].masked_fill(elsewhere, 0.0)
        if self.constants["label_smoothing"] > 0:
            parts["mean"] = mean_of_part(found)
        return parts, value_of_target(found).gather(0, block[None])[0]

    def joined_blocks(
        self, parts: Mapping[str, Tensor], at: Tensor, target: Tensor, columns: int, classes: int
    ) -> dict[str, Tensor]:
        """What the op returns of each row.

        Args:
            parts: The numbers of each block, in a first dimension of their own: those of `joined`,
                and the mean where there is label smoothing.
            at: The logit of each row's target.
            target: The class of each row.
            columns: How many classes a block has; the last has what is left.
            classes: How many there are.
        """
        last, smoothing = len(parts["lse"]) - 1, self.constants["label_smoothing"]
        mean = None
        if smoothing > 0:
            means = parts["mean"]
            sums = columns * means[:-1].sum(0) + (classes - columns * last) * means[-1]
            mean = sums / classes
        return self.joined(parts, at, mean, target, classes)

    def kept_of_blocks(
        self, parts: Mapping[str, Tensor], found: Mapping[str, Tensor], target: Tensor, classes: int
    ) -> Tensor:
        """What a kernel of whole rows would keep of each row.

        op/cross_entropy.cuh says in `keep` what the gradient reads: here the largest lse is the
        maximum, to which the sum is relative.

        `parts` are the numbers of each block, as `joined_blocks` takes them, and `found` what that
        returns.
        """
        ignored = target == self.constants["ignore_index"]
        known = (target >= 0) & (target < classes)
        base, smoothing = parts["lse"].amax(0), self.constants["label_smoothing"]
        log_sum = (parts["lse"] - base).exp_().sum(0).log_().masked_fill(~known, torch.nan)
        kept = [base.masked_fill(ignored, 0.0), log_sum.masked_fill(ignored, torch.inf)]
        if smoothing > 0:
            kept.append(torch.full_like(base, smoothing / classes))
        if "entropy" in found:
            kept.append(found["entropy"])
        return torch.stack(kept, -1)

    def joined(
        self,
        parts: Mapping[str, Tensor],
        at: Tensor,
        mean: Tensor | None,
        labels: Tensor,
        classes: int,
    ) -> dict[str, Tensor]:
        """The loss of each row, and all else that the op returns of it.

        Args:
            parts: lse and, where they are wanted, entropy, the largest logit, and whether that is
                the target's (0 where the target lies elsewhere) of each part, in a first dimension
                of their own.
            at: The logit of each row's target.
            mean: The mean of each row's logits, where there is label smoothing.
            labels: The target of each row.
            classes: How many there are.
        """
        labels, ignored = labels.long(), self.is_ignored(labels)
        known = (labels >= 0) & (labels < classes) & ~ignored
        at = torch.where(known, at, torch.nan)
        found = self._joined_sums(parts)
        lse = found["lse"]
        even = lse if mean is None else lse - mean
        found["loss"] = torch.where(at == -torch.inf, lse - at, self.loss_of(lse - at, even, lse))
        found["log_prob"] = at - lse
        if "correct" in found:
            found["correct"] = found["correct"].masked_fill(~known, 0.0)
        return {name: found[name].masked_fill(ignored, 0.0) for name in self.outputs}

    def _joined_weights(
        self, parts: Mapping[str, Tensor], loss: Tensor, weight: Tensor
    ) -> dict[str, Tensor]:
        """The same of a soft target, with the loss and the sum of weights of each part."""
        found = self._joined_sums(parts)
        lse, gone = found["lse"], parts["lse"] == -torch.inf
        further = (lse - parts["lse"].masked_fill(gone, 0.0)) * weight
        masked = torch.where(weight == 0, 0.0, torch.inf)  # of a part without classes
        plain = torch.where(gone, masked, loss + further).sum(0)
        plain = plain.masked_fill(lse == -torch.inf, torch.nan)
        found["loss"] = self.loss_of(plain, plain, lse)
        return {name: found[name] for name in self.outputs}

    def _joined_sums(self, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What no target has a part in."""
        of_parts = parts["lse"]
        lse = of_parts.logsumexp(0)
        found = {"lse": lse}
        if "entropy" in self.constants:
            gone = of_parts == -torch.inf
            inner = (parts["entropy"] + (lse - of_parts)).masked_fill(gone, 0.0)
            found["entropy"] = ((of_parts - lse).exp() * inner).sum(0)
        if "largest" in parts:
            largest = parts["largest"].detach()
            found["largest"] = largest.amax(0)
            if "correct" in parts:
                hits = parts["correct"].detach() * (largest >= found["largest"])
                found["correct"] = hits.amax(0)
        return found

    def loss_of(self, plain: Tensor, even: Tensor, lse: Tensor) -> Tensor:
        """The loss of a row with label smoothing and z-loss, in torch.

        `plain` is the loss without them, `even` the mean of the losses of all classes of the row.
        """
        smoothing, z_loss = self.constants["label_smoothing"], self.constants["z_loss"]
        loss = plain + smoothing * (even - plain) if smoothing > 0 else plain
        return loss + z_loss * lse.square() if z_loss > 0 else loss
