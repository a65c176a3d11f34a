// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <fusedops/functor/contract.cuh>

int main() { std::printf("%d\n", FUSEDOPS_VERSION); }
