# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""From a checked call to a launch: plans of the forward and of the backward pass, and autograd.

This is the slow path of a dispatcher. It runs once for each new key (shapes, strides and dtypes),
and the C++ runtime caches the plan that it returns. In this package:

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

May import: errors, _runtime, jit, functors, declare, bind, reference, schedule, generate.
"""
