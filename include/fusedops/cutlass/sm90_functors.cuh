// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// A node of CUTLASS's epilogue visitor tree that runs a STORE, for kernels of CUTLASS 3 and 4 on
// sm_90. It needs CUTLASS's headers and nvcc, and no other header of fusedops includes it.
//
//   store(functors..., Absent{})         the values go on to the parent of the node, or to D
//   store(functors..., direct(y, n))     the STORE writes y itself, wherever it lies; D is void
//
//   using Out = decltype(store(bias(per_column(b)), Absent{}));
//   using Tree = cutlass::epilogue::fusion::Sm90EVT<fusedops::Sm90Functors<Out, cutlass::half_t>,
//                                                   cutlass::epilogue::fusion::Sm90AccFetch>;
//   arguments.epilogue.thread = {{}, out};  // of the child, which has none, then the STORE
//
// Rows are those of the product, counted on from one matrix of a batch to the next. A thread of a
// warpgroup holds pairs of columns. Where four lanes hold the pairs of 32 columns they exchange
// them, so that functors see 8 neighbouring columns of one row: wide accesses, and one draw of the
// random generator in place of four. Compile with -DNDEBUG: CUTLASS's assertions are function calls,
// for which ptxas waits after each product of a tile.
#pragma once

#include <cutlass/array.h>
#include <cutlass/cutlass.h>
#include <cutlass/numeric_conversion.h>

#include <cute/tensor.hpp>
#include <cutlass/epilogue/dispatch_policy.hpp>
#include <cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp>
#include <fusedops/dispatch/drawn.cuh>
#include <fusedops/functor/compose.cuh>
#include <fusedops/gemm/exchange.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

namespace detail {

/// Whether a STORE has a target of its own.
template <class StoreT>
struct WritesItself {
  static constexpr bool value = true;
};
template <class Functors, bool kZeroes>
struct WritesItself<Store<Absent, Functors, kZeroes>> {
  static constexpr bool value = false;
};

/// Where the layout puts value `at` of a thread, from its first value: rows and columns.
template <class Layout, int kAt, int kRows, int kCols>
constexpr bool puts() {
  using namespace cute;
  const auto away = Layout{}(Int<kAt>{});
  return int(get<0>(away)) == kRows && int(get<1>(away)) == kCols;
}

/// Whether 16 values of a thread are 4 pairs of neighbouring columns, 8 columns apart, of each of two
/// rows: then 4 lanes have 32 columns of these rows, as the instruction wgmma leaves them.
template <class Layout>
constexpr bool are_pairs_of_quads() {
  if constexpr (cute::is_static<Layout>::value && cute::size(Layout{}) % 16 == 0) {
    return puts<Layout, 1, 0, 1>() && puts<Layout, 2, 8, 0>() && puts<Layout, 4, 0, 8>() &&
           puts<Layout, 8, 0, 16>();
  } else {
    return false;
  }
}

/// Calls `of` for N columns, or for smaller packs where fewer are left of the row.
template <int N, class Of>
__device__ __forceinline__ void in_packs(float* v, int64_t col, int64_t left, const Of& of) {
  if (left >= N) {
    of(reinterpret_cast<float (&)[N]>(*v), col);
  } else if constexpr (N > 1) {
    if (left > 0) in_packs<N / 2>(v, col, left, of);
    if (left > N / 2) in_packs<N / 2>(v + N / 2, col + N / 2, left - N / 2, of);
  }
}

}  // namespace detail

/// The node. Its one child gives the values, as Sm90AccFetch does.
///
/// StoreT: A STORE; what `store(...)` returns, or a type of your own.
/// Element: What the node hands on: the element of D where it is the root. Where D is void, it still
/// decides which copy CUTLASS plans; leave it at 16 bits.
template <class StoreT, class Element = cutlass::half_t>
struct Sm90Functors {
  static constexpr bool kWrites = detail::WritesItself<StoreT>::value;

  using ElementAux = Element;  // CUTLASS asks for it where D is void
  struct SharedStorage {};
  using Arguments = StoreT;
  using Params = StoreT;

  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& store, void*) {
    return store;
  }
  template <class Shape>
  static bool can_implement(const Shape&, const Arguments&) {
    return true;
  }
  template <class Shape>
  static size_t get_workspace_size(const Shape&, const Arguments&) {
    return 0;
  }
  template <class Shape>
  static cutlass::Status initialize_workspace(const Shape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }

  CUTLASS_HOST_DEVICE Sm90Functors() {}
  CUTLASS_HOST_DEVICE Sm90Functors(const Params& store, const SharedStorage&) : params(&store) {}
  const Params* params = nullptr;

  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

  template <class... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(
      const cutlass::epilogue::fusion::ProducerLoadArgs<Args...>&) {
    return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
  }

  /// What a thread does with its part of one tile.
  template <class Coords, class Residue>
  struct Visit : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
    using Drawn = decltype(detail::drawn(detail::any_of<const StoreT>()));
    Drawn store;      // its seeds are read here, once a tile
    Coords coords;    // of this thread's values, from its first
    Residue residue;  // what is left of the matrix from that on
    int64_t rows, cols, first_row;

    CUTLASS_DEVICE Visit(const StoreT& given, Coords at, Residue left, int64_t m, int64_t n,
                         int64_t first)
        : store(detail::drawn(given)),
          coords(at),
          residue(left),
          rows(m),
          cols(n),
          first_row(first) {}

    /// Runs the STORE for the columns of a pack that are in the matrix.
    template <int N>
    CUTLASS_DEVICE void run(float (&v)[N], int64_t row, int64_t col) {
      if (row >= rows) return;
      const RowIndex<1> index{first_row + row, {first_row + row}};
      detail::in_packs<N>(v, col, cols - col, [&](auto& pack, int64_t at) {
        if constexpr (kWrites) {
          store.template store<int(sizeof(pack) / sizeof(float))>(pack, index, at);
        } else {
          store.chain.values(pack, index, at);
        }
      });
    }

    template <class Accumulator, class Input, int kValues>
    CUTLASS_DEVICE cutlass::Array<Element, kValues> visit(
        const cutlass::Array<Accumulator, kValues>&, int epi_v, int epi_m, int epi_n,
        const cutlass::Array<Input, kValues>& input) {
      using namespace cute;
      const auto at = coords(_, _, _, epi_m, epi_n);
      const int64_t row0 = rows - get<0>(residue), col0 = cols - get<1>(residue);
      const cutlass::NumericConverter<float, Input> from;
      const cutlass::NumericConverter<Element, float> to;
      cutlass::Array<Element, kValues> result;
      if constexpr (kWrites) result.clear();
      constexpr bool kQuads =
          kValues % 16 == 0 && detail::are_pairs_of_quads<typename decltype(at)::layout_type>();
      if constexpr (!kQuads) {
        FUSEDOPS_UNROLL
        for (int i = 0; i < kValues; ++i) {
          const auto here = at(epi_v * kValues + i);
          float v[1] = {from(input[i])};
          run(v, row0 + get<0>(here), col0 + get<1>(here));
          if constexpr (!kWrites) result[i] = to(v[0]);
        }
        return result;
      }
      const int lane = threadIdx.x & 3;
      FUSEDOPS_UNROLL
      for (int begin = 0; begin < kValues; begin += 16) {
        FUSEDOPS_UNROLL
        for (int pair = begin; pair < begin + 4; pair += 2) {  // of the one row, of the other
          float v[4][2];
          FUSEDOPS_UNROLL
          for (int i = 0; i < 8; ++i) v[i / 2][i % 2] = from(input[pair + 4 * (i / 2) + i % 2]);
          detail::exchange(v);
          // The first pair of a lane is two columns behind that of the lane before.
          const auto here = at(epi_v * kValues + pair);
          const int64_t col = col0 + get<1>(here) - 2 * lane + 8 * lane;
          run(reinterpret_cast<float (&)[8]>(v), row0 + get<0>(here), col);
          if constexpr (!kWrites) {
            hand_on(v, to, [&](int i, Element made) { result[pair + 4 * (i / 2) + i % 2] = made; });
          }
        }
      }
      return result;
    }

   private:
    /// Rounds the values and gives them back to the lanes that they came from.
    template <class To, class Put>
    CUTLASS_DEVICE static void hand_on(float (&v)[4][2], const To& to, const Put& put) {
      if constexpr (sizeof(Element) == 2) {  // a pair in one exchange
        uint32_t pairs[4][1];
        FUSEDOPS_UNROLL
        for (int i = 0; i < 4; ++i) {
          const uint32_t low = bit_cast<uint16_t>(to(v[i][0]));
          pairs[i][0] = low | static_cast<uint32_t>(bit_cast<uint16_t>(to(v[i][1]))) << 16;
        }
        detail::exchange(pairs);
        FUSEDOPS_UNROLL
        for (int i = 0; i < 8; ++i) {
          const uint32_t bits = pairs[i / 2][0] >> (16 * (i % 2));
          put(i, bit_cast<Element>(static_cast<uint16_t>(bits)));
        }
      } else {
        detail::exchange(v);
        FUSEDOPS_UNROLL
        for (int i = 0; i < 8; ++i) put(i, to(v[i / 2][i % 2]));
      }
    }
  };

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      const cutlass::epilogue::fusion::ConsumerStoreArgs<Args...>& args) {
    const auto [m, n, k, batch] = args.problem_shape_mnkl;
    const int64_t matrix = cute::get<3>(args.tile_coord_mnkl);
    return Visit<decltype(args.tCcD), decltype(args.residue_tCcD)>(
        *params, args.tCcD, args.residue_tCcD, int64_t(m), int64_t(n), matrix * int64_t(m));
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
