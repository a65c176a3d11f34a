# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""What a rank receives in a step of examples/sharded_transformer.py, by arithmetic.

Of n ranks an all-gather or a reduce-scatter of a tensor passes (n - 1) / n of it to each.
"""

from typing import NamedTuple

from sharded_transformer import Sizes


class StepBytes(NamedTuple):
    """Bytes that a rank receives in a forward and a backward pass.

    Attributes:
        stream: Of the residual stream, all-gathered and reduced and scattered over the tensor
            dimension of the mesh.
        loss: Of two numbers of each token, which the loss gathers over that dimension.
        parameters: Of parameters and their gradients, over the data dimension.
    """

    stream: int
    loss: int
    parameters: int

    @property
    def all(self) -> int:
        """Their sum."""
        return sum(self)


def of_a_step(sizes: Sizes, data: int, tensor: int, element: int) -> StepBytes:
    """Of a step on a mesh of data x tensor, with elements of so many bytes.

    A block moves the stream four times forward and as often back: an all-gather before attention
    and one before its hidden layer, a reduce-scatter after each. The embedding and the head move it
    twice each. FSDP gathers the parameters of a block forward and backward and scatters their
    gradients; what belongs to no block, embedding, norm and head, it gathers once.

    Gradients of norms' weights over the tensor dimension are left out: some vectors of `dim`.
    """
    block = collectives_of_block(sizes, data, tensor, element, sizes.heads * sizes.tokens**2)
    rows = -(-sizes.batch // data) * sizes.tokens
    others = 2 * sizes.words * sizes.dim + 2 * sizes.dim
    return StepBytes(
        stream=round(block.stream * (sizes.blocks + 0.5)),
        loss=2 * 4 * rows * (tensor - 1),  # float32 whatever the elements are
        parameters=block.parameters * sizes.blocks
        + round(2 * others * element / tensor * (data - 1) / data),
    )


def collectives_of_block(
    sizes: Sizes, data: int, tensor: int, element: int, bias: int = 0
) -> StepBytes:
    """The same of one block; `bias` numbers more than those of its linear layers and norms.

    Norms are cut like the rest, although all ranks of the tensor dimension have them whole.
    """
    rows = -(-sizes.batch // data) * sizes.tokens
    parameters = 12 * sizes.dim**2 + 7 * sizes.dim + bias
    return StepBytes(
        stream=round(8 * rows * sizes.dim * element * (tensor - 1) / tensor),
        loss=0,
        parameters=round(3 * parameters * element / tensor * (data - 1) / data),
    )
