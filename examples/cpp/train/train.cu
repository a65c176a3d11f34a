// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The same training on a GPU; nvcc needs --extended-lambda.
#include "train.h"

int main() {
  Gpu gpu;
  return train(gpu);
}
