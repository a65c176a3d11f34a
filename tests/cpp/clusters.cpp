// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The packs that a schedule of a cluster takes for complete, against the columns of its last block.
#include <fusedops/dispatch/buckets.cuh>

using fusedops::int64_t;

namespace {

/// kEven: the columns of which chunks have a multiple; kLeast: the columns of the shortest rows.
template <class Bucket, class Compute, int kWidth, int kEven, int64_t kLeast>
int lacking() {
  using Tile = typename Bucket::template Resident<Compute, kWidth, kLeast, false, false, kEven>;
  constexpr int64_t kFull = int64_t(Tile::kFull) * Tile::kThreads * kWidth;
  int count = 0;
  for (int64_t cols = kLeast; cols < kLeast + 2 * Bucket::kCluster * kEven; ++cols) {
    const int64_t chunk = Bucket::template even_chunk<kEven>(cols);
    count += cols % kWidth == 0 && cols - (Bucket::kCluster - 1) * chunk < kFull;
  }
  return count;
}

}  // namespace

extern "C" {

/// How many row lengths have a block with fewer columns than its kernel takes for granted.
int rows_with_incomplete_packs() {
  using namespace fusedops::detail;
  return lacking<OfCluster<2, 256, 64>, float, 4, 4, 16385>() +
         lacking<OfCluster<2, 256, 64>, float, 4, 128, 16496>() +
         lacking<OfCluster<4, 256, 64>, float, 4, 32, 32900>() +
         lacking<OfCluster<8, 256, 64>, float, 4, 128, 65828>() +
         lacking<OfCluster<8, 256, 64>, double, 4, 128, 33060>();
}

}  // extern "C"
