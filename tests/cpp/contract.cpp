// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The contract of LOAD, STORE and functor, as test_contract.py drives it: what the traits accept,
// foreign types in a row schedule, and what a composed LOAD does with its functors.
#include "contract.h"

#include <fusedops/functor/bias.cuh>
#include <fusedops/functor/cast.cuh>
#include <fusedops/functor/causal.cuh>
#include <fusedops/functor/compose.cuh>
#include <fusedops/functor/dropout.cuh>
#include <fusedops/functor/lengths.cuh>
#include <fusedops/functor/mask.cuh>
#include <fusedops/functor/residual.cuh>
#include <fusedops/functor/scale.cuh>
#include <fusedops/host/rows.cuh>
#include <fusedops/op/softmax.cuh>
#include <fusedops/row/statistics.cuh>
#include <type_traits>

using namespace fusedops;

namespace {

template <class T>
using Full = View<T, 1, Column::kContiguous, kAnyWidth>;

template <class T>
Full<T> full(T* data, int64_t cols) {
  return {data, {{cols}}, 1};
}

Value<double> number(double value) { return {{value}}; }

// What the traits accept, and what they refuse.

struct Nothing {};

struct WritingLoad {  // a LOAD is const: a schedule may ask it anything twice
  template <int N>
  void load(float*, int64_t, int64_t) {}
};

struct LoadWithoutWidth {
  void load(float*, int64_t, int64_t) const {}
};

struct LoadOfAnotherType {
  template <int N>
  void load(int**, int64_t, int64_t) const {}
};

struct WritingFunctor {
  template <int N>
  void operator()(float (&)[N], int64_t, int64_t) {}
};

using OurLoad = Load<Full<float>, Scale<Value<float>>, foreign::Ramp>;
using OurStore = Store<Full<float>, Chain<0, Scale<Value<float>>>>;

static_assert(is_load_v<foreign::Load, float>);
static_assert(is_load_v<foreign::Load, float, RowIndex<3>>);
static_assert(is_load_v<foreign::RevisitedLoad, float>);
static_assert(is_load_v<OurLoad, float, RowIndex<1>>);
static_assert(!is_load_v<Nothing, float>);
static_assert(!is_load_v<int, float>);
static_assert(!is_load_v<foreign::Store, float>);
static_assert(!is_load_v<foreign::Ramp, float>);
static_assert(!is_load_v<WritingLoad, float>);
static_assert(!is_load_v<LoadWithoutWidth, float>);
static_assert(!is_load_v<LoadOfAnotherType, float>);
static_assert(!is_load_v<foreign::Load, double>);

static_assert(is_store_v<foreign::Store, float>);
static_assert(is_store_v<foreign::Store, float, RowIndex<3>>);
static_assert(is_store_v<OurStore, float, RowIndex<1>>);
static_assert(!is_store_v<Nothing, float>);
static_assert(!is_store_v<foreign::Load, float>);
static_assert(!is_store_v<foreign::Ramp, float>);
static_assert(!is_store_v<foreign::Store, double>);

static_assert(is_functor_v<foreign::Ramp, float>);
static_assert(is_functor_v<foreign::Ramp, double, RowIndex<2>>);
static_assert(is_functor_v<Scale<Value<float>>, float, RowIndex<1>>);
static_assert(is_functor_v<Causal<RowMap<2>>, float, RowIndex<2>>);
static_assert(!is_functor_v<Nothing, float>);
static_assert(!is_functor_v<foreign::Load, float>);
static_assert(!is_functor_v<WritingFunctor, float>);

static_assert(detail::has_revisit<foreign::RevisitedLoad, float, RowIndex<1>>());
static_assert(!detail::has_revisit<foreign::Load, float, RowIndex<1>>());

// A LOAD says that it bounds its rows where one of its functors does, whatever the rank of the
// rows.
static_assert(!OurLoad::kBounds);
static_assert(Load<Full<float>, Scale<Value<float>>, Causal<RowMap<1>>>::kBounds);
static_assert(Load<Full<float>, Causal<RowMap<4>>, Scale<Value<float>>>::kBounds);
static_assert(Load<Full<float>, Lengths<Value<int64_t>>>::kBounds);

// Functors of a test's own.

/// Keeps part of a row, and says so in the plain form of the contract.
struct Window {
  int64_t begin, end;
  static constexpr bool kMasks = true;
  Columns columns(int64_t) const { return {begin, end}; }
  template <int N>
  bool any(int64_t, int64_t col) const {
    return col + N > begin && col < end;
  }
  template <int N, class Compute>
  void operator()(Compute (&v)[N], int64_t, int64_t col) const {
    for (int i = 0; i < N; ++i)
      v[i] = col + i >= begin && col + i < end ? v[i] : -infinity<Compute>();
  }
};

/// Changes nothing; writes down what it is given, forward and backward.
struct Spy {
  double* given;
  double* seen;
  int64_t cols;
  static constexpr bool kNeedsInput = true;
  template <int N>
  void operator()(double (&v)[N], int64_t row, int64_t col) const {
    for (int i = 0; i < N; ++i) given[row * cols + col + i] = v[i];
  }
  template <int N, class Row, class Sink>
  void backward(double (&)[N], const double (&in)[N], const Row& row, int64_t col, Sink&) const {
    for (int i = 0; i < N; ++i) seen[row * cols + col + i] = in[i];
  }
};

/// A number that knows whether anyone gave it a value.
struct Known {
  double value = 0;
  bool known = false;
};

struct KnownSource {
  template <int N, class Row>
  void read(Known (&v)[N], const Row&, int64_t) const {
    for (int i = 0; i < N; ++i) v[i] = {1.0, true};
  }
};

template <bool kNeeds>
struct Probe {
  bool* got;
  static constexpr bool kNeedsInput = kNeeds;
  template <int N, class Row>
  void operator()(Known (&)[N], const Row&, int64_t) const {}
  template <int N, class Row, class Sink>
  void backward(Known (&)[N], const Known (&in)[N], const Row&, int64_t, Sink&) const {
    *got = in[0].known && in[N - 1].known;
  }
};

struct NoSink {
  template <int kFunctor, int kOperand, int N, class Compute, class Row>
  void add(const Compute (&)[N], const Row&, int64_t) {}
};

/// Calls f with each pack of a row: as wide as a CPU's, as wide as a GPU's, and single columns.
template <class F>
void packs(int64_t cols, F f) {
  int64_t col = 0;
  for (; col + 64 <= cols; col += 64) f(std::integral_constant<int, 64>{}, col);
  for (; col + 8 <= cols; col += 8) f(std::integral_constant<int, 8>{}, col);
  for (; col < cols; ++col) f(std::integral_constant<int, 1>{}, col);
}

template <class LoadT>
void load_all(const LoadT& load, double* y, int64_t rows, int64_t cols, bool again = false) {
  for (int64_t row = 0; row < rows; ++row) {
    packs(cols, [&](auto n, int64_t col) {
      constexpr int N = decltype(n)::value;
      const RowIndex<1> index{row, {row}};
      if (again) {
        load.template revisit<N>(y + row * cols + col, index, col);
      } else {
        load.template load<N>(y + row * cols + col, index, col);
      }
    });
  }
}

template <class LoadT, class StoreT>
void softmax(const LoadT& load, const StoreT& store, int64_t rows, int64_t cols, bool streamed) {
  const Softmax<float, false, false> op{0};
  const RowSpace<1> space{rows};
  if (streamed) {
    host_rows<HostSchedule<Streamed>>(op, load, store, NoStatistics{0}, space, cols, 0, rows);
  } else {
    host_rows<HostSchedule<InRegisters>>(op, load, store, NoStatistics{0}, space, cols, 0, rows);
  }
}

}  // namespace

extern "C" {

/// Softmax from a plain LOAD to a plain STORE; counts what is read of x.
void foreign_softmax(const float* x, float* y, int32_t* visits, int64_t rows, int64_t cols,
                     bool streamed) {
  softmax(foreign::Load{x, cols, visits}, foreign::Store{y, cols}, rows, cols, streamed);
}

/// The same from a LOAD with a visit of another kind for the second time.
void revisited_softmax(const float* x, float* y, int32_t* visits, int32_t* revisits, int64_t rows,
                       int64_t cols, bool streamed) {
  foreign::RevisitedLoad source;
  source.data = x;
  source.cols = cols;
  source.visits = visits;
  source.revisits = revisits;
  softmax(source, foreign::Store{y, cols}, rows, cols, streamed);
}

/// Our source and target, and a plain functor on both sides.
void ramped_softmax(const float* x, float* y, int64_t rows, int64_t cols) {
  softmax(load(full(x, cols), foreign::Ramp{}), store(foreign::Ramp{}, full(y, cols)), rows, cols,
          false);
}

/// A window of each row; y is NaN where x was read outside the window, as x is.
void window_softmax(const float* x, float* y, int64_t rows, int64_t cols, int64_t begin,
                    int64_t end, bool streamed) {
  softmax(load(full(x, cols), Window{begin, end}), store(full(y, cols)), rows, cols, streamed);
}

/// What a chain of two windows, causal and lengths says of row `row`: its columns, and `any` of a
/// pack at `col`.
void bounds(int64_t row, int64_t cols, const int64_t* window, int64_t length, int64_t col,
            int64_t* columns, bool* any) {
  const RowIndex<2> index{row, {static_cast<uint32_t>(row), 0}};
  const auto chain =
      load(Full<double>{}, Window{window[0], window[1]}, Scale<Value<double>>{number(2)},
           Causal<RowMap<2>>{RowMap<2>{{1, 0}}, 0},
           Lengths<Value<int64_t>>{Value<int64_t>{{length}}}, Window{window[2], window[3]});
  const Columns both = bounds_of(chain, index, cols);
  columns[0] = both.begin;
  columns[1] = both.end;
  any[0] = chain.any<8>(index, col);
}

/// Order: (x * 2 + 3) * 5, and the other way round.
void order(const double* x, double* y, int64_t cols, bool reversed, bool storing) {
  const Scale<Value<double>> two{number(2)}, five{number(5)};
  const Bias<Value<double>> three{number(3)};
  const RowIndex<1> index{0, {0}};
  packs(cols, [&](auto n, int64_t col) {
    constexpr int N = decltype(n)::value;
    if (storing && reversed) store(five, three, two, full(y, cols)).store<N>(x + col, index, col);
    if (storing && !reversed) store(two, three, five, full(y, cols)).store<N>(x + col, index, col);
    if (!storing && reversed) load(full(x, cols), five, three, two).load<N>(y + col, index, col);
    if (!storing && !reversed) load(full(x, cols), two, three, five).load<N>(y + col, index, col);
  });
}

/// A mask among functors that would make -inf something else, in each of three places.
void sticky(const double* x, const uint8_t* flags, double* y, int64_t rows, int64_t cols,
            int place) {
  const Mask<Full<const uint8_t>, false> mask{full(flags, cols)};
  const Scale<Value<double>> minus{number(-1)};
  const Bias<Value<double>> plus{number(infinity<double>())};
  if (place == 0) load_all(load(full(x, cols), mask, minus, plus), y, rows, cols);
  if (place == 1) load_all(load(full(x, cols), minus, mask, plus), y, rows, cols);
  if (place == 2) load_all(load(full(x, cols), minus, plus, mask), y, rows, cols);
}

/// Two saved sums with functors around them. `again` visits a second time.
void saved(const double* x, const double* skip, half* first, float* second, double* y, int64_t rows,
           int64_t cols, bool again) {
  using Skip = Residual<Full<const double>, Value<double>>;
  const Skip residual{full(skip, cols), number(0.5)};
  const SavedResidual<Full<const double>, Value<double>, Full<half>> one{
      residual, full(first, cols), {}};
  const SavedResidual<Full<const double>, Value<double>, Full<float>> two{
      residual, full(second, cols), {}};
  load_all(load(full(x, cols), Scale<Value<double>>{number(3)}, one,
                Scale<Value<double>>{number(0.3)}, two, Bias<Value<double>>{number(0.1)}),
           y, rows, cols, again);
}

/// What four spies were given on the way up (by a load, then by a backward's recomputation) and
/// what backward says that they saw: given[2][4][rows][cols], seen[4][rows][cols].
void spied(const double* x, const double* scale, const uint8_t* flags, double* given, double* seen,
           double* y, int64_t rows, int64_t cols) {
  const int64_t size = rows * cols;
  const auto chain = [&](int turn) {
    const auto spy = [&](int i) {
      return Spy{given + (4 * turn + i) * size, seen + i * size, cols};
    };
    return load(full(x, cols), spy(0), Scale<Full<const double>>{full(scale, cols)}, spy(1),
                Mask<Full<const uint8_t>, false>{full(flags, cols)},
                Dropout<double, RowMap<1>>{7, 1, 1 << 14, {4.0 / 3.0}, {{1}}}, spy(2), Cast<half>{},
                spy(3));
  };
  load_all(chain(0), y, rows, cols);
  NoSink sink;
  for (int64_t row = 0; row < rows; ++row) {
    packs(cols, [&](auto n, int64_t col) {
      constexpr int N = decltype(n)::value;
      double g[N] = {};
      chain(1).template backward(g, RowIndex<1>{row, {row}}, col, sink, NoneMasked{});
    });
  }
}

/// Whether functors that need their input, and those that do not, were given one: by LOAD and by
/// STORE.
void needs(bool* needing, bool* other) {
  const Probe<true> yes{needing};
  const Probe<false> no{other}, no_more{other + 1};
  Known g[4], result[4] = {{1, true}, {1, true}, {1, true}, {1, true}};
  NoSink sink;
  const RowIndex<1> row{0, {0}};
  load(KnownSource{}, no, yes, no_more).backward(g, row, 0, sink, NoneMasked{});
  const Probe<true> stored{needing + 1};
  const Probe<false> left{other + 2};
  store(left, stored, Nothing{}).backward(g, result, row, 0, sink, NoneMasked{});
}

}  // extern "C"
