// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// Each foreign LOAD through the operator FOREIGN_OPERATOR of every four: 0 softmax, 1 log-softmax,
// 2 LayerNorm, 3 RMSNorm. They are compiled one by one, since each has all schedules.
#include "foreign.h"
#include "place.h"

#if !defined(FOREIGN_OPERATOR)
#define FOREIGN_OPERATOR 0
#endif

using fusedops::half;

namespace {

template <class L>
int through(void* stream, const L& load, half* y, int64_t rows, int64_t cols) {
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
}

}  // namespace

extern "C" int foreign_load(void* stream, int64_t kind, const half* x, const half* other,
                            const bool* mask, half* y, double fill, double scale, int64_t rows,
                            int64_t cols) {
  const float f = float(fill), s = float(scale);
  switch (kind) {
    case 0:
      return through(stream, foreign::Direct<half, float>{x, cols}, y, rows, cols);
    case 1:
      return through(stream, foreign::DirectAsStored<half>{x, cols}, y, rows, cols);
    case 2:
      return through(stream, foreign::BroadcastScaleMask<half, float, bool>{x, mask, cols, 3, f, s},
                     y, rows, cols);
    case 3:
      return through(stream, foreign::ElementwiseScaleMask<half, float, bool>{x, mask, cols, f, s},
                     y, rows, cols);
    case 4:
      return through(stream, foreign::TrilScale<half, float>{x, rows, cols, 1, f, s}, y, rows,
                     cols);
    case 5:
      return through(stream, foreign::BiasScaleMask<half, float, bool>{x, other, mask, cols, f, s},
                     y, rows, cols);
    case 6:
      return through(stream, foreign::SkipAdd<half, float>{x, other, cols, s}, y, rows, cols);
    default:
      return through(stream, oneflow::cuda::softmax::DirectLoad<half, float>(x, cols), y, rows,
                     cols);
  }
}
