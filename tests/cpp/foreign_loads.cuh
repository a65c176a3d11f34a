// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Each foreign LOAD through the operator FOREIGN_OPERATOR of every four: 0 softmax, 1 log-softmax,
// 2 LayerNorm, 3 RMSNorm. They are compiled one by one, since each has all schedules; with
// FOREIGN_KIND a library has that LOAD alone, and refuses the others with -1.
#include "foreign.h"
#include "place.h"

#if !defined(FOREIGN_OPERATOR)
#define FOREIGN_OPERATOR 0
#endif
#if !defined(FOREIGN_KIND)
#define FOREIGN_KIND -1
#endif

using fusedops::half;

namespace {

template <int Kind, class L>
int through(void* stream, const L& load, half* y, int64_t rows, int64_t cols) {
  if constexpr (FOREIGN_KIND < 0 || FOREIGN_KIND == Kind) {
    const foreign::AffineStore<float, half, false> plain{y, nullptr, nullptr, cols, 0};
#if FOREIGN_OPERATOR == 0
    return int(fusedops::dispatch_softmax<float>(place(stream), load, plain, rows, cols));
#elif FOREIGN_OPERATOR == 1
    return int(fusedops::dispatch_log_softmax<float>(place(stream), load, plain, rows, cols));
#elif FOREIGN_OPERATOR == 2
    return int(fusedops::dispatch_layer_norm<float>(place(stream), load, plain, rows, cols, 1e-5));
#else
    return int(fusedops::dispatch_rms_norm<float>(place(stream), load, plain, rows, cols, 1e-6));
#endif
  } else {
    return -1;
  }
}

}  // namespace

extern "C" int foreign_load(void* stream, int64_t kind, const half* x, const half* other,
                            const bool* mask, half* y, double fill, double scale, int64_t rows,
                            int64_t cols) {
  const float f = float(fill), s = float(scale);
  switch (kind) {
    case 0:
      return through<0>(stream, foreign::Direct<half, float>{x, cols}, y, rows, cols);
    case 1:
      return through<1>(stream, foreign::DirectAsStored<half>{x, cols}, y, rows, cols);
    case 2:
      return through<2>(stream,
                        foreign::BroadcastScaleMask<half, float, bool>{x, mask, cols, 3, f, s}, y,
                        rows, cols);
    case 3:
      return through<3>(stream,
                        foreign::ElementwiseScaleMask<half, float, bool>{x, mask, cols, f, s}, y,
                        rows, cols);
    case 4:
      return through<4>(stream, foreign::TrilScale<half, float>{x, rows, cols, 1, f, s}, y, rows,
                        cols);
    case 5:
      return through<5>(stream,
                        foreign::BiasScaleMask<half, float, bool>{x, other, mask, cols, f, s}, y,
                        rows, cols);
    case 6:
      return through<6>(stream, foreign::SkipAdd<half, float>{x, other, cols, s}, y, rows, cols);
    default:
      return through<7>(stream, oneflow::cuda::softmax::DirectLoad<half, float>(x, cols), y, rows,
                        cols);
  }
}
