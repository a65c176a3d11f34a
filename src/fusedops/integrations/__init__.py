# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Replace norms, experts and attention of existing models by fused ops.

`patch` swaps the norms and the experts of any model of torch, and
`fusedops.integrations.transformers` is an attention for the models of Hugging Face's transformers.
Neither is imported before it is asked for.

May import: errors, functors, bind, nn, ops, map, graph.
"""

__all__: list[str] = []
