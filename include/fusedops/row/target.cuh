// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The targets of operand gradients, one for each wanted gradient. The gradient of an operand of x's
// size is written element by element. That of an operand which rows or columns share is a sum. The
// lanes of a row add up its columns; the threads that process a slice add up its rows, one after
// another, so that the order of summation is fixed. Rows that share an element are neighbours in
// the row order and form a group. A group that lies within one slice is summed and written once.
// For a group that several slices share, each slice writes a partial sum, and a second kernel adds
// these up (op/column_sums.cuh).
#pragma once

#include <fusedops/row/slices.cuh>
#include <fusedops/row/tile.cuh>
#include <fusedops/row/view.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The number of the functor for an operand of the operator itself.
inline constexpr int kOfOperator = -1;

/// The target of operand kOperand of functor kFunctor where the operand has x's size: the gradient
/// is written element by element.
template <int kFunctor_, int kOperand_, class View>
struct Each {
  static constexpr int kFunctor = kFunctor_;
  static constexpr int kOperand = kOperand_;
  View to;

  template <class Tile>
  struct Sum {};

  template <class Tile, class Lane>
  FUSEDOPS_HD void begin(Sum<Tile>&, const Lane&) const {}
  template <class Tile, int N, class Lane, class Compute, class Row>
  FUSEDOPS_HD void add(Sum<Tile>&, const Compute (&gradient)[N], const Lane&, const Row& row,
                       int64_t col, const Visit&, int, int) const {
    to.write(gradient, row, col);
  }
  template <class Tile, class Lane, class Row>
  FUSEDOPS_HD void flush(Sum<Tile>&, const Lane&, const Row&, const Visit&) const {}
};

/// The storage of sums over rows while a slice is processed: registers or shared memory, where a
/// row is one tile in registers; otherwise global memory, one row of sums for each slice.
enum class Sums { kRegisters, kShared, kMemory };

namespace detail {

/// The running sums of a thread, where they are in registers.
template <class Tile, bool kInRegisters, class Compute>
struct ColumnSum {
  Compute at[kInRegisters ? Tile::kPacks : 1][kInRegisters ? Tile::kWidth : 1] = {};
#if !defined(FUSEDOPS_CUDA)
  bool begins = false;
#endif
};

}  // namespace detail

/// The target of an operand whose elements rows share: `group` neighbouring rows share each
/// element, or, with kPartial, all rows of a slice and rows of other slices.
template <int kFunctor_, int kOperand_, class View, bool kPartial, Sums kSums, class Compute>
struct ByColumn {
  static constexpr int kFunctor = kFunctor_;
  static constexpr int kOperand = kOperand_;
  static constexpr bool kInRegisters = kSums == Sums::kRegisters;
  static constexpr bool kInShared = kSums == Sums::kShared;
  static constexpr bool kInMemory = kSums == Sums::kMemory;
  using Number = Compute;
  View to;
  Word<Compute*> memory;
  int64_t offset;  // of the sums in shared memory, in elements
  int64_t group, cols;

  template <class Tile>
  using Sum = detail::ColumnSum<Tile, kInRegisters, Compute>;

  template <class Tile, class Lane>
  FUSEDOPS_HD void begin(Sum<Tile>&, const Lane& lane) const {
    if constexpr (kSums == Sums::kShared) {
      Compute zeros[Tile::kWidth] = {};
      for (int k = 0; k < Tile::kPacks; ++k) lane.put(offset, k, 0, zeros);
    }
  }

  template <class Tile, int N, class Lane, class Row>
  FUSEDOPS_HD void add(Sum<Tile>& sum, const Compute (&gradient)[N], const Lane& lane, const Row&,
                       int64_t col, const Visit& visit, int pack, int first) const {
    if constexpr (kInRegisters) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) sum.at[pack][first + i] += gradient[i];
    } else if constexpr (kSums == Sums::kShared) {
      Compute total[N];
      lane.get(offset, pack, first, total);
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) total[i] += gradient[i];
      lane.put(offset, pack, first, total);
    } else {
      Compute* at = memory.value + visit.slice * cols + col;
#if defined(FUSEDOPS_CUDA)
      const bool begins = visit.begins(kPartial ? 0 : group);
#else
      if (col == 0) sum.begins = visit.begins(kPartial ? 0 : group);  // once a row: a division
      const bool begins = sum.begins;
#endif
      if (begins) {
        FUSEDOPS_VECTOR
        for (int i = 0; i < N; ++i) at[i] = gradient[i];
      } else {
        FUSEDOPS_VECTOR
        for (int i = 0; i < N; ++i) at[i] += gradient[i];
      }
    }
  }

  /// Takes N sums of a slice that are not in memory, and leaves zeros for the next group of rows.
  template <class Tile, int N, class Lane>
  FUSEDOPS_HD void take(Sum<Tile>& sum, const Lane& lane, int pack, int first, Compute (&values)[N],
                        bool partial) const {
    if constexpr (kInRegisters) {
      FUSEDOPS_UNROLL
      for (int i = 0; i < N; ++i) {
        values[i] = sum.at[pack][first + i];
        sum.at[pack][first + i] = 0;
      }
    } else if (partial) {
      lane.get_all(offset, pack, first, values);
    } else {
      Compute zeros[N] = {};
      lane.get(offset, pack, first, values);
      lane.put(offset, pack, first, zeros);
    }
  }

  template <class Tile, class Lane, class Row>
  FUSEDOPS_HD void flush(Sum<Tile>& sum, const Lane& lane, const Row& row,
                         const Visit& visit) const {
    if (!visit.ends(kPartial ? 0 : group)) return;
    if constexpr (kSums == Sums::kMemory && kPartial) {
      // The partial sum is in its place already. A slice without rows has to write zeros.
      if (visit.any) return;
      lane.walk([&](auto width, int64_t col, int, int) {
        for (int i = 0; i < decltype(width)::value; ++i) {
          memory.value[visit.slice * cols + col + i] = 0;
        }
      });
    } else if constexpr (kPartial && Lane::kTogether) {
      const int64_t part = lane.part(visit.slice);
      const auto write = [&](const auto& values, int64_t col) {
        to.write(values, RowIndex<1>{part, {part}}, col);
      };
      if constexpr (kInRegisters) {
        lane.add_up(sum.at, write);
      } else {
        lane.add_up(offset, write);
      }
    } else {
      if constexpr (kPartial && kInRegisters) lane.combine(sum.at);
      if constexpr (kPartial && kSums == Sums::kShared) lane.wait();
      if (!(kPartial ? lane.writes_part() && visit.any : visit.here)) return;
      lane.walk([&](auto width, int64_t col, int pack, int first) {
        constexpr int N = decltype(width)::value;
        Compute values[N];
        if constexpr (kSums != Sums::kMemory) {
          take<Tile>(sum, lane, pack, first, values, kPartial);
        } else {
          FUSEDOPS_VECTOR
          for (int i = 0; i < N; ++i) values[i] = memory.value[visit.slice * cols + col + i];
        }
        if constexpr (kPartial) {
          to.write(values, RowIndex<1>{lane.part(visit.slice), {lane.part(visit.slice)}}, col);
        } else {
          to.write(values, row, col);
        }
      });
    }
  }
};

/// The target of an operand with rows of its own, whose elements `group` neighbouring rows share:
/// those of a slice, or more where `partial` is set. Which it is follows from how many rows there
/// are, so that one kernel does both; `Whole` and `Split` are the ByColumn of each.
template <class Whole_, class Split_>
struct ByColumnOrSplit {
  static constexpr int kFunctor = Whole_::kFunctor;
  static constexpr int kOperand = Whole_::kOperand;
  static constexpr bool kInShared = Whole_::kInShared;
  Whole_ whole;
  Split_ split;
  int64_t partial;

  template <class Tile>
  using Sum = typename Whole_::template Sum<Tile>;

  template <class Tile, class Lane>
  FUSEDOPS_HD void begin(Sum<Tile>& sum, const Lane& lane) const {
    whole.template begin<Tile>(sum, lane);
  }
  template <class Tile, int N, class Compute, class Lane, class Row>
  FUSEDOPS_HD void add(Sum<Tile>& sum, const Compute (&gradient)[N], const Lane& lane,
                       const Row& row, int64_t col, const Visit& visit, int pack, int first) const {
    if (Whole_::kInMemory && partial) {
      split.template add<Tile>(sum, gradient, lane, row, col, visit, pack, first);
    } else {
      whole.template add<Tile>(sum, gradient, lane, row, col, visit, pack, first);
    }
  }
  template <class Tile, class Lane, class Row>
  FUSEDOPS_HD void flush(Sum<Tile>& sum, const Lane& lane, const Row& row,
                         const Visit& visit) const {
    if constexpr (Whole_::kInMemory) {
      if (partial) {
        split.template flush<Tile>(sum, lane, row, visit);
      } else {
        whole.template flush<Tile>(sum, lane, row, visit);
      }
    } else {
      if (!visit.ends(partial ? 0 : whole.group)) return;
      if constexpr (Lane::kTogether) {
        if (partial) return split.template flush<Tile>(sum, lane, row, visit);
      }
      // As ByColumn does, but with one walk for both: two would take registers.
      if (partial) {
        if constexpr (Whole_::kInRegisters) {
          lane.combine(sum.at);
        } else {
          lane.wait();
        }
      }
      if (!(partial ? lane.writes_part() && visit.any : visit.here)) return;
      lane.walk([&](auto width, int64_t col, int pack, int first) {
        constexpr int N = decltype(width)::value;
        typename Whole_::Number values[N];
        whole.template take<Tile>(sum, lane, pack, first, values, partial);
        if (partial) {
          const int64_t part = lane.part(visit.slice);
          split.to.write(values, RowIndex<1>{part, {part}}, col);
        } else {
          whole.to.write(values, row, col);
        }
      });
    }
  }
};

namespace detail {

/// The sum of a pack by halves: a compiler may not reorder additions by itself.
template <int N, class Compute>
FUSEDOPS_HD Compute pairwise_sum(const Compute (&values)[N]) {
  if constexpr (N == 1) {
    return values[0];
  } else {
    Compute sums[N / 2];
    FUSEDOPS_VECTOR
    for (int i = 0; i < N / 2; ++i) sums[i] = values[i] + values[i + N / 2];
    return pairwise_sum(sums);
  }
}

}  // namespace detail

/// The target of an operand of which all columns of a row, and `group` neighbouring rows, share an
/// element. OfRow is that of an operand of the operator itself, which has one number for each row:
/// the thread that writes a sum has also added it up, so the lanes exchange nothing.
template <int kFunctor_, int kOperand_, class View, bool kPartial, class Compute>
struct ByRow {
  static constexpr int kFunctor = kFunctor_;
  static constexpr int kOperand = kOperand_;
  View to;
  int64_t group;

  template <class Tile>
  struct Sum {
    Compute at = 0;
  };

  template <class Tile, class Lane>
  FUSEDOPS_HD void begin(Sum<Tile>&, const Lane&) const {}

  template <class Tile, int N, class Lane, class Row>
  FUSEDOPS_HD void add(Sum<Tile>& sum, const Compute (&gradient)[N], const Lane&, const Row&,
                       int64_t, const Visit&, int, int) const {
#if defined(FUSEDOPS_CUDA)
    Compute of_pack = 0;
    FUSEDOPS_UNROLL
    for (int i = 0; i < N; ++i) of_pack += gradient[i];
    sum.at += of_pack;
#else
    sum.at += detail::pairwise_sum(gradient);
#endif
  }

  template <class Tile, class Lane, class Row>
  FUSEDOPS_HD void flush(Sum<Tile>& sum, const Lane& lane, const Row& row,
                         const Visit& visit) const {
    if (!visit.ends(kPartial ? 0 : group)) return;
    Compute all[1] = {sum.at};
    if constexpr (kFunctor != kOfOperator) all[0] = lane.sum(sum.at);
    sum.at = 0;
    if (!lane.writes() || !(kPartial || visit.here)) return;  // a slice may be empty
    if constexpr (kPartial) {
      to.write(all, RowIndex<1>{visit.slice, {visit.slice}}, 0);
    } else {
      to.write(all, row, 0);
    }
  }
};
template <int kOperand, class View, bool kPartial, class Compute>
using OfRow = ByRow<kOfOperator, kOperand, View, kPartial, Compute>;

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
