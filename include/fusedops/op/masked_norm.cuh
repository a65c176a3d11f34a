// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LayerNorm, RMSNorm and L2Norm over the elements that the masks of the LOAD leave in a row. As for a
// softmax, an element of value -inf is masked. It adds nothing to a sum and is not counted, by
// selection, and its result is kMaskedResult, which stands for it: no norm has that result. The STORE
// writes zero there (functor/masked.cuh, which also makes NaN of a -inf that no mask has set). A row
// of which nothing is left has a mean and a reciprocal deviation of NaN, which no element reads. All
// else is as in op/norm.cuh and op/l2_norm.cuh.
#pragma once

#include <fusedops/functor/masked.cuh>
#include <fusedops/op/l2_norm.cuh>
#include <fusedops/op/norm.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// The number of elements of a tile that no mask has taken out; padding is -inf as well.
template <class Tile>
FUSEDOPS_HD typename Tile::Compute count_present(const Tile& tile) {
  using Compute = typename Tile::Compute;
  return tile.sum([](Compute x) { return is_marked(x) ? Compute(0) : Compute(1); });
}

/// The results of a norm, and the mark of a masked element in their place.
template <class Finish_>
struct MaskedFinish : Finish_ {
  using Compute = typename Finish_::Compute;
  FUSEDOPS_HD Compute operator()(Compute x) const {
    const Compute result = static_cast<const Finish_&>(*this)(x);
    return is_marked(x) ? kMaskedResult<Compute> : result;
  }
  template <class Partial>
  FUSEDOPS_HD MaskedFinish of(Partial) const {
    return *this;
  }
};

}  // namespace detail

template <class Compute_>
struct MaskedLayerNorm : LayerNorm<Compute_> {
  using typename LayerNorm<Compute_>::Compute;
  using typename LayerNorm<Compute_>::Partial;

  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
    constexpr int kPower = detail::power_of_two(Tile::kPacks * Tile::kSpan);
    constexpr Compute kMost = kPower;
    constexpr Compute kShrink = Compute(1) / kPower;
    const Compute count = group.sum(detail::count_present(tile));
    const Compute sum = group.sum(
        tile.sum([](Compute x) { return detail::is_marked(x) ? Compute(0) : x * kShrink; }));
    const Compute share = count > 0 ? reciprocal(count) : Compute(0);
    const Compute mean = sum * (kMost * share);
    const Compute squares = group.sum(tile.sum([mean](Compute x) {
      const Compute apart = difference(x, mean);
      return detail::is_marked(x) ? Compute(0) : apart * apart;
    }));
    // The mean's own rounding, as in LayerNorm::reduce.
    const Compute off = group.sum(tile.sum(
        [mean](Compute x) { return detail::is_marked(x) ? Compute(0) : difference(x, mean); }));
    const bool matters = mean * mean * count > squares || squares == 0;
    const Compute low = matters ? off * share : Compute(0);
    return {count, mean, low, matters ? squares - off * low : squares};  // off may be infinite
  }

  struct OfRow : LayerNorm<Compute_>::Finish {
    Compute count;

    static constexpr int kKept = 4;
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const {
      kept[0] = this->mean;
      kept[1] = this->rstd;
      kept[2] = this->shift;
      kept[3] = count;
    }
  };
  using Finish = detail::MaskedFinish<OfRow>;

  template <class Row>
  FUSEDOPS_HD Finish finish(Partial part, const Row&, int64_t) const {
    const Compute variance = average(part.squares, part.count);
    const Compute rstd = detail::reciprocal_deviation<Compute>(variance, this->eps);
    const Compute mean = part.count > 0 ? part.mean : quiet_nan<Compute>();
    return {{{mean, rstd, -part.low * rstd}, part.count}};
  }
};

/// The reduction of a masked RMSNorm: the number of elements, and the sum of their squares.
template <class Compute_>
struct MaskedRmsNorm {
  using Compute = Compute_;
  Word<Compute> eps;

  struct alignas(2 * sizeof(Compute)) Partial {
    Compute count, squares;
  };
  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }
  FUSEDOPS_HD static Partial identity() { return {0, 0}; }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
    const Compute count = detail::count_present(tile);
    const Compute squares =
        tile.sum([](Compute x) { return detail::is_marked(x) ? Compute(0) : x * x; });
    return {group.sum(count), group.sum(squares)};
  }
  template <class Group, class Tile>
  FUSEDOPS_HD Partial rebuild(Group, Tile&) const {
    return identity();
  }
  template <class Tile>
  FUSEDOPS_HD void rebuild(const Partial&, Tile&) const {}
  template <class Group>
  FUSEDOPS_HD Partial combine(Group group, Partial part) const {
    return {group.sum(part.count), group.sum(part.squares)};
  }
  FUSEDOPS_HD Partial merge(Partial a, Partial b) const {
    return {a.count + b.count, a.squares + b.squares};
  }

  struct OfRow : RmsNorm<Compute_>::Finish {
    Compute count;

    static constexpr int kKept = 2;
    FUSEDOPS_HD void keep(Compute (&kept)[kKept]) const {
      kept[0] = this->rstd;
      kept[1] = count;
    }
  };
  using Finish = detail::MaskedFinish<OfRow>;

  template <class Row>
  FUSEDOPS_HD Finish finish(Partial part, const Row&, int64_t) const {
    const Compute variance = average(part.squares, part.count);
    return {{{0, detail::reciprocal_deviation<Compute>(variance, eps)}, part.count}};
  }
};

template <class Compute_>
struct MaskedL2Norm : L2Norm<Compute_> {
  using typename L2Norm<Compute_>::Compute;
  using typename L2Norm<Compute_>::Partial;
  using Finish = detail::MaskedFinish<typename L2Norm<Compute_>::Finish>;

  FUSEDOPS_HD static Compute padding_value() { return -infinity<Compute>(); }

  template <class Group, class Tile>
  FUSEDOPS_HD Partial reduce(Group group, Tile& tile) const {
    return {
        group.sum(tile.sum([](Compute x) { return detail::is_marked(x) ? Compute(0) : x * x; }))};
  }
  template <class Row>
  FUSEDOPS_HD Finish finish(Partial part, const Row& row, int64_t cols) const {
    return {L2Norm<Compute_>::finish(part, row, cols)};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
