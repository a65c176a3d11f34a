# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Replace norms, experts, attention and losses of existing models by fused ops.

`patch` swaps the norms and the experts of any model of torch, and the head and the loss of causal
language models of Hugging Face's transformers. `fusedops.integrations.transformers` is an attention
for the models of that library. Neither is imported before it is asked for.

May import: errors, functors, bind, nn, ops, map, product, graph.
"""

__all__: list[str] = []
