// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The examples of the two contracts, as test_contract_examples.py takes them out of the headers, in
// the row schedules of a CPU: y = l2_normalize(x * (1 + gain)), forward and backward.
#include <fusedops/functor/compose.cuh>
#include <fusedops/host/gradient.cuh>
#include <fusedops/host/rows.cuh>
#include <fusedops/row/statistics.cuh>

#include "functor_example.h"
#include "operator_example.h"

using namespace fusedops;

namespace {

template <class T>
using Full = View<T, 1, Column::kContiguous, kAnyWidth>;

template <class T>
Full<T> full(T* data, int64_t cols) {
  return {data, {{cols}}, 1};
}

using Op = example::L2Normalize<float>;
using Gradient = example::L2NormalizeGradient<float>;
using OnePlus = example::OnePlus<Full<const float>>;

static_assert(is_functor_v<OnePlus, float, RowIndex<1>>);
static_assert(is_operator_v<Op>);
static_assert(is_operator_gradient_v<Gradient>);
static_assert(!is_operator_v<Gradient>);
static_assert(!is_operator_gradient_v<Op>);
static_assert(!is_operator_v<OnePlus>);
static_assert(!is_operator_v<int>);

template <class Storage>
void run(const float* x, const float* gain, const float* dy, float* y, float* kept, float* dx,
         float* dgain, int64_t rows, int64_t cols, float eps) {
  using Schedule = HostSchedule<Storage>;
  const RowSpace<1> space{rows};
  const auto from = load(full(x, cols), OnePlus{full(gain, cols)});
  const Full<float> numbers = full(kept, Gradient::kKept);
  const Kept<Full<float>, NoStatistics> statistics{numbers, {0}};
  host_rows<Schedule>(Op{{eps}}, from, store(full(y, cols)), statistics, space, cols, 0, rows);

  const Each<0, 0, Full<float>> of_gain{full(dgain, cols)};
  const Slices slices{1, rows, rows};
  host_gradient<Schedule>(Gradient{{eps}}, from, full(dy, cols), store(Absent{}), numbers,
                          full(dx, cols), targets(of_gain), targets(), slices, space, cols, 0,
                          rows);
}

}  // namespace

extern "C" void l2_normalize(const float* x, const float* gain, const float* dy, float* y,
                             float* kept, float* dx, float* dgain, int64_t rows, int64_t cols,
                             float eps, bool streamed) {
  if (streamed) {
    run<Streamed>(x, gain, dy, y, kept, dx, dgain, rows, cols, eps);
  } else {
    run<InRegisters>(x, gain, dy, y, kept, dx, dgain, rows, cols, eps);
  }
}
