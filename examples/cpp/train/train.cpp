// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Training on threads of a CPU.
#include "train.h"

int main() {
  Cpu cpu;
  return train(cpu);
}
