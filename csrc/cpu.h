// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets of this processor, by the names of /proc/cpuinfo.
#pragma once

#include <string>
#include <vector>

namespace fusedops::runtime {

/// Instruction sets that the processor has and the operating system has enabled.
std::vector<std::string> cpu_features();

}  // namespace fusedops::runtime
