// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Each shape of LOAD and STORE that OneFlow's published kernels have, written anew from their
// contract: what a member reads and writes, its qualifiers, what is in the struct. This is about
// what compiles, without a warning; foreign_loads.cuh and foreign_stores.cuh are about values.
#include <fusedops/oneflow.cuh>

#if !defined(__CUDACC__)
#define __device__
#endif

namespace shapes {

using fusedops::half;
using std::int32_t;
using std::int64_t;
using std::int8_t;
namespace softmax = oneflow::cuda::softmax;
namespace layer_norm = oneflow::cuda::layer_norm;

/// Strides of an index, with a destructor that is virtual: a member of functors whose masks
/// broadcast.
template <class Index, int kDims>
class Strides {
 public:
  Strides() = default;
  virtual ~Strides() = default;
  __device__ void split(Index offset, Index* at) const {
    for (int i = 0; i < kDims; ++i) {
      at[i] = offset / stride_[i];
      offset -= at[i] * stride_[i];
    }
  }
  __device__ Index join(const Index* at) const {
    Index offset = 0;
    for (int i = 0; i < kDims; ++i) offset += at[i] * stride_[i];
    return offset;
  }

 private:
  Index stride_[kDims] = {};
};

template <int kDims, class Index>
struct BroadcastParams {
  Strides<Index, kDims> of_x, of_mask;
  const int64_t* mask_dims{};
  int64_t row_size;
  float fill, scale;
};
struct ElementwiseParams {
  int64_t row_size;
  float fill, scale;
};

/// scale * x where a mask that broadcasts in any dimension is not zero.
template <class SRC, class DST, class MASK, int kDims, class Index>
struct BroadcastMaskLoad {
  BroadcastMaskLoad(const SRC* src, const MASK* mask, BroadcastParams<kDims, Index> params)
      : src(src), mask(mask), params(params) {
    for (int i = 0; i < kDims; ++i) dims[i] = params.mask_dims ? params.mask_dims[i] : 1;
  }
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) {
    softmax::Pack<SRC, N> x;
    softmax::Pack<MASK, N> m;
    const Index offset = static_cast<Index>(row * params.row_size + col);
    Index at[kDims];
    params.of_x.split(offset, at);
    for (int i = 0; i < kDims; ++i) at[i] = dims[i] == 1 ? 0 : at[i];
    const Index of_mask = params.of_mask.join(at);
    x.storage = *(reinterpret_cast<const softmax::PackType<SRC, N>*>(src) + offset / N);
    m.storage = *(reinterpret_cast<const softmax::PackType<MASK, N>*>(mask) + of_mask / N);
    for (int i = 0; i < N; ++i) {
      dst[i] = m.elem[i] == 0 ? static_cast<DST>(params.fill)
                              : static_cast<DST>(x.elem[i]) * static_cast<DST>(params.scale);
    }
  }
  const SRC* src;
  const MASK* mask;
  int64_t dims[kDims];
  BroadcastParams<kDims, Index> params;
};

/// The same, where the result is stored.
template <class SRC, class DST, class MASK, int kDims, class Index>
struct BroadcastMaskStore {
  BroadcastMaskStore(DST* dst, const MASK* mask, BroadcastParams<kDims, Index> params)
      : dst(dst), mask(mask), params(params) {}
  template <int N>
  __device__ void store(const SRC* src, int64_t row, int64_t col) {
    softmax::Pack<DST, N> y;
    softmax::Pack<MASK, N> m;
    const Index offset = static_cast<Index>(row * params.row_size + col);
    Index at[kDims];
    params.of_x.split(offset, at);
    const Index of_mask = params.of_mask.join(at);
    m.storage = *(reinterpret_cast<const softmax::PackType<MASK, N>*>(mask) + of_mask / N);
    for (int i = 0; i < N; ++i) {
      y.elem[i] =
          m.elem[i] == 0 ? static_cast<DST>(params.fill) : static_cast<DST>(src[i] * params.scale);
    }
    *(reinterpret_cast<softmax::PackType<DST, N>*>(dst) + offset / N) = y.storage;
  }
  DST* dst;
  const MASK* mask;
  BroadcastParams<kDims, Index> params;
};

/// A mask of x's size, read as int8_t whatever it is; not const, and no LoadType.
template <class SRC, class DST, class MASK>
struct ElementwiseMaskLoad {
  ElementwiseMaskLoad(const SRC* src, const MASK* mask, ElementwiseParams params)
      : src(src), mask(mask), params(params) {}
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) {
    softmax::Pack<SRC, N> x;
    const int64_t offset = (row * params.row_size + col) / N;
    x.storage = *(reinterpret_cast<const softmax::PackType<SRC, N>*>(src) + offset);
    softmax::Pack<int8_t, N> m;
    m.storage = *(reinterpret_cast<const softmax::PackType<MASK, N>*>(mask) + offset);
    for (int i = 0; i < N; ++i) {
      dst[i] = m.elem[i] == 0 ? static_cast<DST>(params.fill)
                              : static_cast<DST>(x.elem[i]) * static_cast<DST>(params.scale);
    }
  }
  const SRC* src;
  const MASK* mask;
  ElementwiseParams params;
};
template <class SRC, class DST, class MASK>
struct ElementwiseMaskStore {
  ElementwiseMaskStore(DST* dst, const MASK* mask, ElementwiseParams params)
      : dst(dst), mask(mask), params(params) {}
  template <int N>
  __device__ void store(const SRC* src, int64_t row, int64_t col) {
    softmax::Pack<DST, N> y;
    const int64_t offset = (row * params.row_size + col) / N;
    softmax::Pack<MASK, N> m;
    m.storage = *(reinterpret_cast<const softmax::PackType<MASK, N>*>(mask) + offset);
    for (int i = 0; i < N; ++i) {
      y.elem[i] = static_cast<DST>(m.elem[i] == 0 ? params.fill : src[i] * params.scale);
    }
    *(reinterpret_cast<softmax::PackType<DST, N>*>(dst) + offset) = y.storage;
  }
  DST* dst;
  const MASK* mask;
  ElementwiseParams params;
};

/// The lower triangle: fill and scale are of the type in memory, and a pack may be left unread.
template <class SRC, class DST>
struct TrilLoad {
  const SRC* src;
  int64_t tril_rows, row_size, diagonal;
  SRC fill, scale;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) {
    const int64_t last = row % tril_rows + diagonal;
    softmax::Pack<SRC, N> x;
    if (col <= last) {
      x.storage =
          *(reinterpret_cast<const softmax::PackType<SRC, N>*>(src) + (row * row_size + col) / N);
    }
    for (int i = 0; i < N; ++i) {
      dst[i] = col + i > last ? static_cast<DST>(fill)
                              : static_cast<DST>(x.elem[i]) * static_cast<DST>(scale);
    }
  }
};
template <class SRC, class DST>
struct TrilStore {
  DST* dst;
  int64_t tril_rows, row_size, diagonal;
  DST fill, scale;
  template <int N>
  __device__ void store(const SRC* src, int64_t row, int64_t col) {
    const int64_t last = row % tril_rows + diagonal;
    softmax::Pack<DST, N> y;
    for (int i = 0; i < N; ++i) {
      y.elem[i] = col + i > last ? fill : static_cast<DST>(static_cast<DST>(src[i]) * scale);
    }
    *(reinterpret_cast<softmax::PackType<DST, N>*>(dst) + (row * row_size + col) / N) = y.storage;
  }
};

/// Dropout by a mask that is there: the softmax is stored as well, and the gradient reads dy so.
template <class SRC, class DST, class MASK>
struct MaskAndScaleStore {
  DST *dst, *softmax_y;
  const MASK* mask;
  int64_t row_size;
  DST scale;
  template <int N>
  __device__ void store(const SRC* src, int64_t row, int64_t col) {
    softmax::Pack<DST, N> result, y;
    const int64_t offset = (row * row_size + col) / N;
    softmax::Pack<MASK, N> m;
    m.storage = *(reinterpret_cast<const softmax::PackType<MASK, N>*>(mask) + offset);
    for (int i = 0; i < N; ++i) {
      result.elem[i] = static_cast<DST>(src[i]);
      y.elem[i] = static_cast<DST>(src[i]) * static_cast<DST>(static_cast<float>(m.elem[i])) *
                  static_cast<DST>(scale);
    }
    *(reinterpret_cast<softmax::PackType<DST, N>*>(softmax_y) + offset) = result.storage;
    *(reinterpret_cast<softmax::PackType<DST, N>*>(dst) + offset) = y.storage;
  }
};
template <class SRC, class DST, class MASK>
struct MaskAndScaleLoad {
  const SRC* src;
  const MASK* mask;
  int64_t row_size;
  SRC scale;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    softmax::Pack<SRC, N> x;
    const int64_t offset = (row * row_size + col) / N;
    x.storage = *(reinterpret_cast<const softmax::PackType<SRC, N>*>(src) + offset);
    softmax::Pack<MASK, N> m;
    m.storage = *(reinterpret_cast<const softmax::PackType<MASK, N>*>(mask) + offset);
    for (int i = 0; i < N; ++i) {
      dst[i] = static_cast<DST>(x.elem[i]) * static_cast<DST>(m.elem[i]) * static_cast<DST>(scale);
    }
  }
};

/// A bias that is added where the mask was, both of x's last dimensions, before the scale.
template <class SRC, class DST, class MASK>
struct BiasMaskLoad {
  using LoadType = DST;
  const SRC *src, *bias;
  const MASK* mask;
  int64_t row_size, bias_stride;
  DST fill, scale;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) {
    softmax::Pack<SRC, N> x, b;
    softmax::Pack<MASK, N> m;
    x.storage =
        *(reinterpret_cast<const softmax::PackType<SRC, N>*>(src) + (row * row_size + col) / N);
    b.storage = *(reinterpret_cast<const softmax::PackType<SRC, N>*>(bias) +
                  (row / bias_stride * row_size + col) / N);
    m.storage = *(reinterpret_cast<const softmax::PackType<MASK, N>*>(mask) + col / N);
    for (int i = 0; i < N; ++i) {
      dst[i] = m.elem[i] == 0 ? fill : static_cast<DST>(x.elem[i] + b.elem[i]) * scale;
    }
  }
};

/// x + bias + skip in the type of memory, where a null pointer stands for what is not there.
template <class SRC, class DST>
struct SkipLoad {
  using LoadType = DST;
  const SRC *src, *bias, *skip;
  double alpha;
  int64_t row_size;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    layer_norm::Pack<SRC, N> x, b, s;
    const int64_t offset = (row * row_size + col) / N;
    x.storage = *(reinterpret_cast<const layer_norm::PackType<SRC, N>*>(src) + offset);
    if (bias) {
      b.storage = *(reinterpret_cast<const layer_norm::PackType<SRC, N>*>(bias) + col / N);
    } else {
      for (int i = 0; i < N; ++i) b.elem[i] = static_cast<SRC>(0.f);
    }
    if (skip) {
      s.storage = *(reinterpret_cast<const layer_norm::PackType<SRC, N>*>(skip) + offset);
    } else {
      for (int i = 0; i < N; ++i) s.elem[i] = static_cast<SRC>(0.f);
    }
    for (int i = 0; i < N; ++i) {
      dst[i] = static_cast<DST>(x.elem[i] + b.elem[i] +
                                s.elem[i] * static_cast<SRC>(static_cast<float>(alpha)));
    }
  }
};

/// gamma and beta in the type of memory, chosen at compile time; the row size may have 32 bits.
template <class SRC, class DST, bool do_scale, bool do_center>
struct AffineStore {
  DST* y;
  int32_t row_size;
  const DST *gamma, *beta;
  template <int N>
  __device__ void store(const SRC* src, int64_t row, int64_t col) {
    layer_norm::Pack<DST, N> out, g, b;
    const int64_t offset = (row * row_size + col) / N;
    const int32_t of_gamma = static_cast<int32_t>(col / N);
    if (do_scale) {
      g.storage = *(reinterpret_cast<const layer_norm::PackType<DST, N>*>(gamma) + of_gamma);
    } else {
      for (int i = 0; i < N; ++i) g.elem[i] = static_cast<DST>(1.f);
    }
    if (do_center) {
      b.storage = *(reinterpret_cast<const layer_norm::PackType<DST, N>*>(beta) + of_gamma);
    } else {
      for (int i = 0; i < N; ++i) b.elem[i] = static_cast<DST>(0.f);
    }
    for (int i = 0; i < N; ++i) {
      const DST normalized = static_cast<DST>(src[i]);
      out.elem[i] =
          do_scale || do_center ? static_cast<DST>(normalized * g.elem[i] + b.elem[i]) : normalized;
    }
    *(reinterpret_cast<layer_norm::PackType<DST, N>*>(y) + offset) = out.storage;
  }
};

/// dy * gamma, and dx to which something is added.
template <class SRC, class DST, bool do_scale>
struct ScaleLoad {
  using LoadType = DST;
  const SRC *src, *gamma;
  int64_t row_size;
  template <int N>
  __device__ void load(DST* dst, int64_t row, int64_t col) const {
    layer_norm::Pack<SRC, N> x, g;
    x.storage =
        *(reinterpret_cast<const layer_norm::PackType<SRC, N>*>(src) + (row * row_size + col) / N);
    if (do_scale) {
      g.storage = *(reinterpret_cast<const layer_norm::PackType<SRC, N>*>(gamma) + col / N);
    } else {
      for (int i = 0; i < N; ++i) g.elem[i] = static_cast<SRC>(1.f);
    }
    for (int i = 0; i < N; ++i) {
      dst[i] = static_cast<DST>(x.elem[i]) * static_cast<DST>(g.elem[i]);
    }
  }
};
template <class SRC, class DST, bool do_add>
struct AddStore {
  const DST* add_to_output;
  DST* dst;
  int64_t row_size;
  template <int N>
  __device__ void store(const SRC* src, int64_t row, int64_t col) {
    layer_norm::Pack<DST, N> added, out;
    const int64_t offset = (row * row_size + col) / N;
    if (do_add) {
      added.storage =
          *(reinterpret_cast<const layer_norm::PackType<DST, N>*>(add_to_output) + offset);
    }
    for (int i = 0; i < N; ++i) {
      out.elem[i] = do_add ? static_cast<DST>(static_cast<DST>(src[i]) + added.elem[i])
                           : static_cast<DST>(src[i]);
    }
    *(reinterpret_cast<layer_norm::PackType<DST, N>*>(dst) + offset) = out.storage;
  }
};

#if defined(__CUDACC__)
using Where = cudaStream_t;
#else
using Where = fusedops::Threads;
#endif

// One bucket, wide and narrow: a LOAD or a STORE compiles for all or for none.
using One = fusedops::cols<1024, 1024>;

template <class LOAD, class STORE>
bool softmax_of(Where where, LOAD load, STORE store) {
  return int(fusedops::dispatch_softmax<float>(where, load, store, 1, One(1024))) == 0;
}
template <class LOAD, class STORE>
bool norm_of(Where where, LOAD load, STORE store) {
  float* const none = nullptr;
  return int(fusedops::dispatch_layer_norm<float>(where, load, store, 1, One(1024), 1e-5, none,
                                                  none)) == 0;
}

template <class T>
bool all(Where where, const T* x, const bool* flags, const int8_t* bytes, T* y, const float* mean) {
  const BroadcastParams<4, int32_t> broadcast{};
  const ElementwiseParams elementwise{1024, 0, 1};
  const BroadcastMaskLoad<T, float, bool, 4, int32_t> broadcast_load(x, flags, broadcast);
  const BroadcastMaskStore<float, T, bool, 4, int32_t> broadcast_store(y, flags, broadcast);
  const ElementwiseMaskLoad<T, float, bool> elementwise_load(x, flags, elementwise);
  const ElementwiseMaskStore<float, T, bool> elementwise_store(y, flags, elementwise);
  const T one = static_cast<T>(1.f), zero = static_cast<T>(0.f);
  const TrilLoad<T, float> tril_load{x, 1024, 1024, 0, zero, one};
  const TrilStore<float, T> tril_store{y, 1024, 1024, 0, zero, one};
  const MaskAndScaleStore<float, T, int8_t> scale_store{y, y, bytes, 1024, one};
  const MaskAndScaleLoad<T, float, bool> scale_load{x, flags, 1024, one};
  const BiasMaskLoad<T, float, bool> bias_load{x, x, flags, 1024, 8, 0, 1};
  const SkipLoad<T, float> skip_load{x, x, nullptr, 1, 1024};
  const AffineStore<float, T, true, true> affine_store{y, 1024, x, x};
  const AffineStore<float, T, false, true> centering_store{y, 1024, nullptr, x};
  const ScaleLoad<T, float, true> gamma_load{x, x, 1024};
  const AddStore<float, T, true> add_store{x, y, 1024};
  const layer_norm::DirectLoad<T, float> direct_load(x, 1024);
  bool good = softmax_of(where, broadcast_load, elementwise_store);
  good = softmax_of(where, elementwise_load, broadcast_store) && good;
  good = softmax_of(where, tril_load, scale_store) && good;
  good = softmax_of(where, bias_load, tril_store) && good;
  good = softmax_of(where, scale_load, tril_store) && good;
  good = norm_of(where, skip_load, affine_store) && good;
  good = norm_of(where, direct_load, centering_store) && good;
  good = int(fusedops::dispatch_rms_norm<float>(where, skip_load, affine_store, 1, One(1024),
                                                1e-5)) == 0 &&
         good;
  good = int(fusedops::dispatch_rms_norm_gradient<float>(where, direct_load, gamma_load, add_store,
                                                         mean, 1, One(1024))) == 0 &&
         good;
  return int(fusedops::dispatch_layer_norm_gradient<float>(
             where, direct_load, gamma_load, add_store, mean, mean, 1, One(1024))) == 0 &&
         good;
}

bool all_of_half(Where where, const half* x, const bool* flags, const int8_t* bytes, half* y,
                 const float* mean) {
  return all(where, x, flags, bytes, y, mean);
}

}  // namespace shapes
