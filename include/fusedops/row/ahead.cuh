// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Operands of a pack that are read before the values are there. A kernel that computes its values by
// itself, as a product does, has nothing to wait for when it comes to the functors but their operands.
// So functors run twice: first to issue the reads, into registers, then with the values. The first run
// computes nothing that is used and writes nothing, so that a compiler leaves the reads alone of it.
// A kernel whose blocks stay for many rows does the same, once for all of them, with the operands that
// rows share.
#pragma once

#include <fusedops/core/memory.cuh>
#include <fusedops/row/index.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

#if defined(FUSEDOPS_CUDA)

/// What was read for one pack. Reads beyond it are made when their values are needed.
template <int kWords_>
struct WordsAhead {
  static constexpr int kWords = kWords_;
  uint32_t words[kWords];
};
using OperandsAhead = WordsAhead<16>;

/// A row whose reads go to registers (kIssues), or are taken from there: those of the operands that
/// kAhead names. Reads come in the same order both times; the positions are constants after inlining.
template <class Index, bool kIssues, Ahead kAhead = Ahead::kOfRows, class Operands = OperandsAhead>
struct AheadRow : Index {
  Operands& operands;
  mutable int next;  // the word of the next read

  __device__ __forceinline__ AheadRow(const Index& row, Operands& to, int first = 0)
      : Index(row), operands(to), next(first) {}

  template <int W, class T>
  __device__ __forceinline__ Pack<T, W> read(const T* from) const {
    constexpr int kBytes = sizeof(T) * W, kWords = (kBytes + 3) / 4;
    if (next + kWords > Operands::kWords) return read_input<W>(from);
    uint32_t* at = operands.words + next;
    next += kWords;
    if constexpr (kBytes < 4) {
      using Bits = typename detail::Raw<kBytes>::type;
      if constexpr (!kIssues) return bit_cast<Pack<T, W>>(static_cast<Bits>(at[0]));
      const Pack<T, W> pack = read_input<W>(from);
      at[0] = bit_cast<Bits>(pack);
      return pack;
    } else {
      struct Words {
        uint32_t at[kWords];
      };
      Words words;
      if constexpr (kIssues) {
        words = bit_cast<Words>(read_input<W>(from));
        FUSEDOPS_UNROLL
        for (int i = 0; i < kWords; ++i) at[i] = words.at[i];
      } else {
        FUSEDOPS_UNROLL
        for (int i = 0; i < kWords; ++i) words.at[i] = at[i];
      }
      return bit_cast<Pack<T, W>>(words);
    }
  }
};

/// A row together with what has been read of operands, or is to be read (kIssues), for each pack of a
/// thread's tile.
template <class Index, int kPacks, bool kIssues = false, Ahead kAhead = Ahead::kOfShared,
          class Operands = OperandsAhead>
struct RowWithOperands {
  const Index& row;
  Operands (&operands)[kPacks];

  /// The row as functors see it at one pack.
  __device__ __forceinline__ AheadRow<Index, kIssues, kAhead, Operands> at(int pack) const {
    return {row, operands[pack]};
  }
};

namespace detail {

/// The row with what has been read, or as it is.
template <bool kKeeps, class Index, int kPacks>
__device__ __forceinline__ decltype(auto) with_shared(const Index& row,
                                                      OperandsAhead (&operands)[kPacks]) {
  if constexpr (kKeeps) {
    return RowWithOperands<Index, kPacks>{row, operands};
  } else {
    return (row);
  }
}

template <class Index, bool kIssues, Ahead kAhead, class Operands>
struct ReadsAhead<AheadRow<Index, kIssues, kAhead, Operands>> {
  static constexpr bool kOnlyIssues = kIssues;
  static constexpr Ahead kOf = kAhead;
};

}  // namespace detail

#endif  // FUSEDOPS_CUDA

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
