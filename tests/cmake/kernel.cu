// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include <fusedops/functor/contract.cuh>

__global__ void version(int* out) { *out = FUSEDOPS_VERSION; }
