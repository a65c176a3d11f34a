# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From a checked call to a plan of its launches, of which nothing is built yet.

`planner.plan` is the one way, for every pass that a kernel runs: `forward.Forward`,
`backward.Backward`, and the two of a product (in `product`). In this package:

- A plan is one or two kernels with their launch configuration (grid, thread block, dynamic shared
  memory), argument words and relocations.
- The argument words are the kernel's only argument, as 8-byte words: pointers, strides, sizes and
  numbers.
- A relocation, a "patch" in the code, is a triple (word, kind, source): which word each call
  rewrites, and from which pointer or number of the call.
- Saved tensors are what the forward pass keeps for the backward pass: inputs, saved streams and row
  statistics.
- A workspace is memory that a plan allocates for one call, such as the partial sums between two
  kernels; it is not returned.

May import: errors, _runtime, functors, declare, bind, schedule, generate.
"""
