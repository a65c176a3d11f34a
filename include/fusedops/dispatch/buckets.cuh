// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The row schedules that a C++ dispatch chooses from by the number of columns (a dispatch table),
// and ranges of columns known at compile time, which shorten it. A bucket is a number of threads per
// row and of values per thread; the first bucket with enough registers for the row is taken, or a
// cluster of blocks (sm_90 and later). Longer rows are processed in chunks. The reduction tree follows
// from columns and types.
#pragma once

#include <fusedops/row/kernel.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// A number of columns that is known to lie between two at compile time: cols<1, 1024>(n). Fewer
/// kernels are compiled; a number outside is an error when dispatched.
template <int64_t kLow, int64_t kHigh>
struct cols {
  static_assert(kLow >= 1 && kLow <= kHigh && kHigh <= 0x7fffffff,
                "fusedops: cols<low, high> needs 1 <= low <= high < 2^31");
  int64_t count;
  explicit constexpr cols(int64_t n) : count(n) {}
};

/// The same with the fewest kernels: few_cols<>(n), or few_cols<1, 1024>(n). Two or three schedules
/// serve all row lengths, none is made for rows that fill it, and long rows are read twice: quick to
/// compile, and slower to run. The bits are others than those of cols<low, high>.
template <int64_t kLow = 1, int64_t kHigh = 0x7fffffff>
struct few_cols : cols<kLow, kHigh> {
  using cols<kLow, kHigh>::cols;
};

namespace detail {

template <class Given>
struct RangeOf {
  static_assert(static_cast<Given>(1) / static_cast<Given>(2) == static_cast<Given>(0),
                "fusedops: the number of columns is an integer, or cols<low, high>(n)");
  static constexpr bool kFew = false;
  static constexpr int64_t kLow = 1, kHigh = 0x7fffffff;
  static int64_t count(Given cols) { return static_cast<int64_t>(cols); }
};
template <int64_t kLow_, int64_t kHigh_>
struct RangeOf<cols<kLow_, kHigh_>> {
  static constexpr bool kFew = false;
  static constexpr int64_t kLow = kLow_, kHigh = kHigh_;
  static int64_t count(cols<kLow_, kHigh_> cols) { return cols.count; }
};
template <int64_t kLow_, int64_t kHigh_>
struct RangeOf<few_cols<kLow_, kHigh_>> : RangeOf<cols<kLow_, kHigh_>> {
  static constexpr bool kFew = true;
};

/// kThreads: threads per row; kValues: 4-byte values per thread. kPersistent: threads of persistent
/// blocks per multiprocessor, where rows share a gradient; kOccupancy: occupancy target in threads
/// per multiprocessor, 0 leaves it to the compiler; of doubles, which take two registers, both are
/// half as many. kBlock: threads per block where a block holds several rows; kCluster: blocks per
/// row, kThreads in each of them; kFitted: the row gets as many warps as it needs, of which all but the
/// last are full, so that one kernel serves all lengths of a cluster. A block by itself is for rows
/// that fill their warps: others are shared out evenly, LayerNorm of 1536 columns 3.33 TB/s and not 3.02.
template <int kThreads_, int kValues_, int kPersistent = 1024, int kOccupancy = 0, int kBlock_ = 64,
          int kCluster_ = 1, bool kFitted_ = false>
struct Bucket {
  static constexpr int kThreads = kThreads_, kValues = kValues_, kCluster = kCluster_;
  static constexpr bool kFitted = kFitted_, kFullRows = kFitted && kCluster == 1;
  static constexpr int kRows = kThreads <= 32 ? kBlock_ / kThreads : 1;
  static constexpr int kBlock = kThreads * kRows;
  /// The second bound of a kernel's launch: blocks per multiprocessor. Without one ptxas 13.0 spills
  /// doubles, though there are registers.
  template <class Compute>
  static constexpr int kNoBound = sizeof(Compute) > 4;
  /// kPacks: of a thread. The addresses of more than 8 leave no registers for an occupancy target.
  template <class Compute, int kPacks>
  static constexpr int kBlocks =
      larger(kPacks <= 8 ? kOccupancy * 4 / int(sizeof(Compute)) / kBlock : 0, kNoBound<Compute>);
  template <class Compute>
  static constexpr int kPersistentThreads = kPersistent * 4 / int(sizeof(Compute));

  template <class Compute>
  static constexpr int64_t kCapacity =
      int64_t(kCluster) * kThreads * kValues * 4 / int64_t(sizeof(Compute));
  template <class Compute, int kWidth>
  static constexpr int kPacks = kValues * 4 / int(sizeof(Compute)) / kWidth;
  /// Rows of a multiple of so many columns, up to the capacity, fill all of their threads.
  template <class Compute>
  static constexpr int64_t kStep =
      kFitted ? kCapacity<Compute> / (kThreads / 32) : kCapacity<Compute>;
  /// The packs that are complete in each thread of a row of kLeast columns or more. Of a cluster the
  /// last block has the fewest columns, since those of the others are rounded up to a multiple of kEven.
  template <class Compute, int kWidth, int64_t kLeast, int kEven>
  static constexpr int full() {
    if constexpr (kFitted) return 0;  // the last warp may have one column
    constexpr int64_t kOfBlock = kLeast / kCluster - (kCluster - 1) * kEven;
    constexpr int64_t kFull = kOfBlock / (int64_t(kThreads) * kWidth);
    return kFull < 0 ? 0 : static_cast<int>(smaller<int64_t>(kFull, kPacks<Compute, kWidth>));
  }
  /// The schedule of rows of kLeast columns or more that one tile holds, or the tiles of a cluster.
  /// kPieces: whether the end of a row may cut a pack. kEven: what even_chunk() is asked for.
  template <class Compute, int kWidth, int64_t kLeast, bool kExact, bool kPieces,
            int kEven = kWidth>
  using Resident =
      Schedule<InRegisters, kThreads, kPacks<Compute, kWidth>, kWidth, kRows, kExact,
               kExact ? kPacks<Compute, kWidth> : full<Compute, kWidth, kLeast, kEven>(), kPieces,
               kCluster, (kCluster > 1 && (kFitted || !kExact)) ? -1 : 0, 1, kFitted>;
  /// The schedule of a block that processes the tiles of a row one after another. Instead of a cluster
  /// it has the chunks of its blocks, and so gives the same bits.
  template <class Storage, class Compute, int kWidth>
  using Chunked = Schedule<Storage, kThreads, kPacks<Compute, kWidth>, kWidth, kRows, false, 0,
                           true, 1, (kCluster > 1) ? -1 : 0, 1, kFitted>;
  /// The columns of a row that each block of a cluster has: whole packs, and so many that each block
  /// has some.
  template <int kWidth>
  static int64_t even_chunk(int64_t cols) {
    constexpr int64_t kStep = int64_t(kCluster) * kWidth;
    return (cols + kStep - 1) / kStep * kWidth;
  }
  /// The threads of a block of rows of so many columns; with packs of the width, or with any.
  template <class Compute, int kWidth = 16>
  static int threads(int64_t cols) {
    if constexpr (!kFitted) return kBlock;
    constexpr int64_t kOfWarp = 32 * kValues * 4 / int64_t(sizeof(Compute));
    return 32 * static_cast<int>((even_chunk<kWidth>(cols) + kOfWarp - 1) / kOfWarp);
  }
};

template <class... Buckets>
struct Ladder {};

/// Of rows of several warps, kThreads / 32 at most.
template <int kThreads, int kValues, int kOccupancy = 768, int kPersistent = 1024>
using Fitted = Bucket<kThreads, kValues, kPersistent, kOccupancy, 64, 1, true>;

/// Of longer rows: a cluster of blocks, which devices have from sm_90 on.
template <int kBlocks, int kThreads, int kValues, int kOccupancy = 768>
using FittedCluster = Bucket<kThreads, kValues, 1024, kOccupancy, 64, kBlocks, true>;
template <int kBlocks, int kThreads, int kValues, int kPersistent = 1024>
using OfCluster = Bucket<kThreads, kValues, kPersistent, 0, 64, kBlocks>;

/// Of the longest rows that one block holds.
using LongestTile = Bucket<256, 64>;
using ForwardLadder =
    Ladder<Bucket<4, 16>, Bucket<16, 16>, Bucket<32, 16>, Bucket<32, 32, 0, 768>, Fitted<256, 32>,
           Fitted<256, 64>, Bucket<64, 32, 0, 768>, Bucket<128, 32, 0, 768>, Bucket<128, 64>,
           LongestTile, FittedCluster<2, 256, 64>, FittedCluster<4, 256, 64>,
           FittedCluster<8, 256, 64>>;
using ForwardChunk = Bucket<512, 16>;
/// A LayerNorm keeps four numbers per part of a row beside the values, so that three blocks of 256
/// threads would spill.
using CentredLadder =
    Ladder<Bucket<4, 16>, Bucket<16, 16>, Bucket<32, 16>, Bucket<32, 32, 0, 768>, Fitted<256, 32>,
           Fitted<256, 64, 512>, Bucket<64, 32, 0, 768>, Bucket<128, 32, 0, 768>, Bucket<128, 64>,
           LongestTile, FittedCluster<2, 256, 64, 512>, FittedCluster<8, 128, 64, 640>,
           FittedCluster<16, 128, 64, 640>>;
/// Without a result a row is read once, and chunks lose nothing: the tiles are small, so that doubles
/// do not spill.
using LossLadder = Ladder<Bucket<4, 16>, Bucket<16, 16>, Bucket<32, 16>, Bucket<64, 16>,
                          Bucket<128, 16>, Bucket<256, 16>>;

/// All rows of a norm usually share its parameters, and so their gradients; those of a softmax do
/// not.
using NormGradientLadder =
    Ladder<Bucket<8, 8, 1024, 0, 128>, Bucket<32, 8, 1024, 0, 128>, Bucket<64, 8>,
           Bucket<32, 32, 448, 0, 128>, Fitted<256, 16>, Fitted<256, 32>, Bucket<128, 16, 768>,
           Bucket<256, 16, 768>, Bucket<256, 32, 512>, FittedCluster<2, 256, 32>,
           FittedCluster<4, 256, 32>, FittedCluster<8, 256, 32>, FittedCluster<16, 256, 32>,
           Bucket<512, 32, 512>, OfCluster<4, 256, 32, 512>, OfCluster<8, 256, 32, 512>,
           OfCluster<8, 512, 32, 512>>;
using SoftmaxGradientLadder =
    Ladder<Bucket<8, 8>, Bucket<32, 8>, Bucket<64, 8>, Bucket<64, 16, 512>, Fitted<256, 16>,
           Fitted<256, 32>, Bucket<128, 16, 768>, Bucket<256, 16, 768>, Bucket<256, 32, 512, 512>,
           FittedCluster<2, 256, 32>, FittedCluster<4, 256, 32>, FittedCluster<8, 256, 32>,
           FittedCluster<16, 256, 32>, Bucket<512, 32, 512>, OfCluster<4, 256, 32, 512>,
           OfCluster<8, 256, 32, 512>, OfCluster<8, 512, 32, 512>>;
/// Nor does a loss's gradient sum anything over a row.
using LossGradientLadder = Ladder<Bucket<8, 8>, Bucket<32, 8>, Bucket<64, 8>, Bucket<128, 8>,
                                  Bucket<256, 8>, Bucket<512, 8>>;
using GradientChunk = Bucket<512, 16, 512>;

/// Those of few_cols. What costs a compiler is how many values a thread has, in a gradient above
/// all: there 8 take half the time of 32.
using FewForwardLadder = Ladder<Bucket<32, 32, 0, 768>, Bucket<256, 64>>;
using FewGradientLadder = Ladder<Bucket<64, 8>, Bucket<512, 8>>;
using FewGradientChunk = Bucket<512, 8>;

template <bool kFew, class Many, class Few>
struct Either {
  using type = Many;
};
template <class Many, class Few>
struct Either<true, Many, Few> {
  using type = Few;
};
/// The ladder of a range of columns.
template <class Range, class Many, class Few>
using LadderOf = typename Either<Range::kFew, Many, Few>::type;

/// Calls f.resident<Bucket, kLeast, kExact>() for the first bucket that holds the columns, of which
/// there are at least kLeast (kExact: so many that they fill all threads), and f.chunked<Chunk>() if
/// none does. Fitted buckets are for F::kFits, and stand before the others of the same lengths: kTaken
/// is the smallest step of those for full rows. Only what the range allows is instantiated.
inline constexpr int64_t kNoStep = int64_t(1) << 62;
template <class Compute, class Range, class Chunk, int64_t kBelow, int64_t kTaken = kNoStep,
          class F>
auto climb(Ladder<>, int64_t cols, const F& f) {
  (void)cols;
  if constexpr (Range::kHigh > kBelow) {
    return f.template chunked<Chunk>();
  } else {
    return f.outside();
  }
}
template <class Compute, class Range, class Chunk, int64_t kBelow, int64_t kTaken = kNoStep,
          class F, class First, class... Rest>
auto climb(Ladder<First, Rest...>, int64_t cols, const F& f) {
  constexpr int64_t kCapacity = First::template kCapacity<Compute>;
  constexpr int64_t kStep = First::template kStep<Compute>;
  constexpr bool kServes = kCapacity > kBelow && (F::kFits || !First::kFitted);
  if constexpr (kServes && Range::kLow <= kCapacity && Range::kHigh > kBelow) {
    constexpr int64_t kLeast = larger<int64_t>(Range::kLow, kBelow + 1);
    constexpr int64_t kMost = smaller<int64_t>(Range::kHigh, kCapacity);
    constexpr bool kFills = !Range::kFew && kMost / kStep * kStep >= kLeast;
    if (cols <= kCapacity) {
      if constexpr (kFills && (First::kFitted || kStep % kTaken != 0)) {
        if (cols % kStep == 0) return f.template resident<First, kLeast, true>();
      }
      if constexpr (!First::kFullRows && (kLeast < kStep || First::kFitted || Range::kFew)) {
        return f.template resident<First, kLeast, false>();
      }
    }
  }
  constexpr int64_t kNow = kServes && First::kFullRows ? smaller(kTaken, kStep) : kTaken;
  constexpr int64_t kNext = kServes && !First::kFullRows ? kCapacity : kBelow;
  return climb<Compute, Range, Chunk, kNext, kNow>(Ladder<Rest...>{}, cols, f);
}

}  // namespace detail

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
