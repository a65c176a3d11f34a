# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What is looked up in a table."""

import torch

from steps import Step


class Gather(Step, word="gather"):
    """An entry of a table for each query and key, and in it a number for each head."""

    functor = "Gather"
    examples = {
        "gather": lambda make: (
            make.named(torch.linspace(-1, 1, 18, dtype=make.dtype, device=make.device).view(6, 3)),
            make.named((torch.arange(40, device=make.device).view(5, 8) * 7 % 6).short()),
        )
    }

    @staticmethod
    def value(walk, v, table, index):
        return v + walk.operand(table)[walk.operands[index].long()].permute(2, 0, 1)

    @staticmethod
    def back(way, g, step, table, index):
        kept = g if way.kept is None else g.select(way.kept)
        if isinstance(way.operands.get(table), torch.Tensor):
            # Each element of x adds to its entry and its head alone: (batch, q, k, entries, heads).
            own = torch.nn.functional.one_hot(way.operands[index].long(), len(way.operands[table]))

            def apart(each):
                return each.movedim(1, -1)[..., None, :] * own[..., None].to(each)

            found = kept.moved(apart)
            way.result[table] = way.result[table] + found if table in way.result else found
        return g
