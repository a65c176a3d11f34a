// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// LOADs and STOREs as people wrote them for OneFlow's published contract, written anew from that
// interface: __device__ members, packs by reinterpret_cast, a row size each. Some declare LoadType
// or CanPackAs, some do neither; some write from a member that is not const.
#pragma once

#include <fusedops/oneflow.cuh>

#if !defined(__CUDACC__)
#define __device__
#endif

namespace foreign {

using std::int64_t;
namespace of = oneflow::cuda::layer_norm;

template <class To, class From>
__device__ To to(From x) {
  return fusedops::convert<To>(x);
}

/// Reads N elements at an offset that N divides.
template <class T, int N>
__device__ of::Pack<T, N> pack_at(const T* data, int64_t offset) {
  of::Pack<T, N> pack;
  pack.storage = *(reinterpret_cast<const of::PackType<T, N>*>(data) + offset / N);
  return pack;
}

/// Direct; no member says anything.
template <class SRC, class DST>
struct Direct {
  const SRC* src;
  int64_t row_size;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    const auto pack = pack_at<SRC, N>(src, row * row_size + col);
    for (int i = 0; i < N; ++i) dst[i] = to<DST>(pack.elem[i]);
  }
};

/// Loads as it lies in memory: LoadType is not the compute type. Not const.
template <class SRC>
struct DirectAsStored {
  using LoadType = SRC;
  const SRC* src;
  int64_t row_size;
  bool CanPackAs(size_t pack_size) { return row_size % int64_t(pack_size) == 0; }
  template <int N>
  __device__ void load(SRC* dst, int64_t row, int64_t col) {
    const auto pack = pack_at<SRC, N>(src, row * row_size + col);
    for (int i = 0; i < N; ++i) dst[i] = pack.elem[i];
  }
};

/// scale * x where the mask, one row for so many rows of x, is true; else fill.
template <class SRC, class DST, class MASK>
struct BroadcastScaleMask {
  const SRC* src;
  const MASK* mask;
  int64_t row_size, rows_per_mask;
  DST fill, scale;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    const auto x = pack_at<SRC, N>(src, row * row_size + col);
    const auto m = pack_at<MASK, N>(mask, row / rows_per_mask * row_size + col);
    for (int i = 0; i < N; ++i) dst[i] = m.elem[i] ? to<DST>(x.elem[i]) * scale : fill;
  }
};

/// The same with a mask of x's size, whose bytes are read as int8_t whatever their type is.
template <class SRC, class DST, class MASK>
struct ElementwiseScaleMask {
  using LoadType = DST;
  const SRC* src;
  const MASK* mask;
  int64_t row_size;
  DST fill, scale;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    const auto x = pack_at<SRC, N>(src, row * row_size + col);
    of::Pack<std::int8_t, N> m;
    m.storage =
        *(reinterpret_cast<const of::PackType<MASK, N>*>(mask) + (row * row_size + col) / N);
    for (int i = 0; i < N; ++i) dst[i] = m.elem[i] ? to<DST>(x.elem[i]) * scale : fill;
  }
};

/// scale * x up to the diagonal of a square, else fill; what is masked out is not read.
template <class SRC, class DST>
struct TrilScale {
  const SRC* src;
  int64_t tril_rows, row_size, diagonal;
  DST fill, scale;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    const int64_t last = row % tril_rows + diagonal;
    if (col > last) {
      for (int i = 0; i < N; ++i) dst[i] = fill;
      return;
    }
    const auto x = pack_at<SRC, N>(src, row * row_size + col);
    for (int i = 0; i < N; ++i) dst[i] = col + i <= last ? to<DST>(x.elem[i]) * scale : fill;
  }
};

/// (x + bias) * scale where the mask is true, else fill; the bias is a row for all.
template <class SRC, class DST, class MASK>
struct BiasScaleMask {
  const SRC *src, *bias;
  const MASK* mask;
  int64_t row_size;
  DST fill, scale;
  bool CanPackAs(size_t pack_size) { return row_size % int64_t(pack_size) == 0; }
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    const auto x = pack_at<SRC, N>(src, row * row_size + col);
    const auto b = pack_at<SRC, N>(bias, col);
    const auto m = pack_at<MASK, N>(mask, row * row_size + col);
    for (int i = 0; i < N; ++i) {
      dst[i] = m.elem[i] ? (to<DST>(x.elem[i]) + to<DST>(b.elem[i])) * scale : fill;
    }
  }
};

/// x + alpha * skip.
template <class SRC, class DST>
struct SkipAdd {
  using LoadType = DST;
  const SRC *src, *skip;
  int64_t row_size;
  DST alpha;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    const auto x = pack_at<SRC, N>(src, row * row_size + col);
    const auto s = pack_at<SRC, N>(skip, row * row_size + col);
    for (int i = 0; i < N; ++i) dst[i] = to<DST>(x.elem[i]) + alpha * to<DST>(s.elem[i]);
  }
};

/// gamma * y + beta, from a member that is not const and changes its object.
template <class SRC, class DST, bool kAffine>
struct AffineStore {
  DST* y;
  const DST *gamma, *beta;
  int64_t row_size;
  int calls;
  bool CanPackAs(size_t pack_size) { return row_size % int64_t(pack_size) == 0; }
  template <int N>
  __device__ void store(const SRC* src, int64_t row, int64_t col) {
    ++calls;
    of::Pack<DST, N> out;
    for (int i = 0; i < N; ++i) out.elem[i] = to<DST>(src[i]);
    if constexpr (kAffine) {
      const auto g = pack_at<DST, N>(gamma, col);
      const auto b = pack_at<DST, N>(beta, col);
      for (int i = 0; i < N; ++i) {
        out.elem[i] = to<DST>(src[i] * to<SRC>(g.elem[i]) + to<SRC>(b.elem[i]));
      }
    }
    *(reinterpret_cast<of::PackType<DST, N>*>(y) + (row * row_size + col) / N) = out.storage;
  }
};

/// dy * gamma.
template <class SRC, class DST>
struct ScaledLoad {
  const SRC *src, *gamma;
  int64_t row_size;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    const auto x = pack_at<SRC, N>(src, row * row_size + col);
    const auto g = pack_at<SRC, N>(gamma, col);
    for (int i = 0; i < N; ++i) dst[i] = to<DST>(x.elem[i]) * to<DST>(g.elem[i]);
  }
};

/// scale * dx up to the diagonal, else zero: not const.
template <class SRC, class DST>
struct TrilScaleStore {
  DST* dst;
  int64_t tril_rows, row_size, diagonal;
  SRC scale;
  template <int N>
  __device__ void store(const SRC* src, int64_t row, int64_t col) {
    of::Pack<DST, N> out;
    for (int i = 0; i < N; ++i) {
      const bool kept = col + i <= row % tril_rows + diagonal;
      out.elem[i] = to<DST>(kept ? src[i] * scale : SRC(0));
    }
    *(reinterpret_cast<of::PackType<DST, N>*>(dst) + (row * row_size + col) / N) = out.storage;
  }
};

}  // namespace foreign
