// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// y = STORE(x @ w.T) in one kernel of CUTLASS for sm_90, x of shape (rows, depth) and w of shape
// (cols, depth), both contiguous and in half; depth is a multiple of 8, as the bulk copies want.
#pragma once

#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/gemm/kernel/tile_scheduler.hpp>
#include <fusedops/cutlass/sm90_functors.cuh>

/// StoreT: The STORE. D: void where it has a target; else the element of the result that CUTLASS
/// writes, whose rows are then a multiple of 16 bytes.
template <class StoreT, class D>
struct Linear {
  using Half = cutlass::half_t;
  using RowMajor = cutlass::layout::RowMajor;
  using ColumnMajor = cutlass::layout::ColumnMajor;
  using Tile = cute::Shape<cute::_128, cute::_128, cute::_64>;
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;

  using Tree = cutlass::epilogue::fusion::Sm90EVT<fusedops::Sm90Functors<StoreT, Half>,
                                                  cutlass::epilogue::fusion::Sm90AccFetch>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, 8, D, RowMajor,
      8, cutlass::epilogue::TmaWarpSpecialized, Tree>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Half, RowMajor, 8, Half, ColumnMajor, 8,
      float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedPingpong>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop,
                                                      Epilogue, cutlass::gemm::PersistentScheduler>;

  static cutlass::Status run(cudaStream_t stream, const Half* x, const Half* w, Half* y,
                             const StoreT& store, int rows, int cols, int depth) {
    typename Kernel::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    arguments.problem_shape = {rows, cols, depth, 1};
    arguments.mainloop.ptr_A = x;
    arguments.mainloop.dA = {depth, cute::_1{}, int64_t(0)};
    arguments.mainloop.ptr_B = w;
    arguments.mainloop.dB = {depth, cute::_1{}, int64_t(0)};
    arguments.epilogue.thread = {{}, store};  // of the node's child, which has none; of the node
    if constexpr (!std::is_void_v<D>) arguments.epilogue.ptr_D = y;
    arguments.epilogue.dD = {cols, cute::_1{}, int64_t(0)};
    arguments.hw_info.sm_count =
        cutlass::KernelHardwareInfo::query_device_multiprocessor_count(arguments.hw_info.device_id);
    cutlass::gemm::device::GemmUniversalAdapter<Kernel> gemm;
    if (const auto status = gemm.can_implement(arguments); status != cutlass::Status::kSuccess) {
      return status;
    }
    return gemm(arguments, nullptr, stream);
  }
};
