# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Matrix products with a STORE: torch's product, and one `Map` kernel for the functors after it.

Where one kernel for both was measured to be faster (docs/explanation/products.md), it runs the
call: `choice` says where, `product_kernel` and `product_backward` have its passes for `plan`,
`single` calls it, `torch_op` is its operator of torch, and `recorded` builds it ahead. `grouped`
has the product of groups of rows, `grouped_product` torch's, and `grouped_weights` the gradient of
its matrices; `routing` has what stands around products of experts. An op of this package is a
declaration of its own whose parts, torch's product and the `Map`, each have gradients, operators of
torch and reports already; it adds their common contract.

May import: errors, _runtime, jit, functors, declare, bind, schedule, generate, plan, run,
prebuild, explain, torch_ops, distributed, map, ops.
"""

from fusedops.product.declaration import ProductOp
from fusedops.product.grouped import GroupedLinear
from fusedops.product.linear import Linear, Matmul
from fusedops.product.linear_cross_entropy import LinearCrossEntropy
from fusedops.product.mlp import MLP

__all__ = ["MLP", "GroupedLinear", "Linear", "LinearCrossEntropy", "Matmul", "ProductOp"]
