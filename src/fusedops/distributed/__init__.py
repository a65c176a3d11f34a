# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""Ops on torch's distributed tensors (DTensor): which rank computes what, and what moves.

Importing this package tells DTensor how the operators of `torch_ops` are computed on shards, and
`torch_ops` who runs an op's call on distributed tensors. It imports `torch.distributed.tensor`, so
nothing imports it before an op gets a distributed tensor.

May import: errors, functors, declare, bind, run, explain, torch_ops.
"""

from fusedops.distributed import calls, sharding
from fusedops.torch_ops import tracing

sharding.register()
tracing.on_ranks = calls.call_on_ranks
