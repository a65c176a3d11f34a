// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// What this processor can do, by the names that /proc/cpuinfo uses.
#pragma once

#include <string>
#include <vector>

namespace fusedops::runtime {

/// Instruction sets that the processor has and the operating system has switched on.
std::vector<std::string> cpu_features();

}  // namespace fusedops::runtime
