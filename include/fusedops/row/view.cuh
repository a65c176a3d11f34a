// SPDX-FileCopyrightText: 2026 The fusedops authors
// SPDX-License-Identifier: Apache-2.0
//
// The view through which a kernel accesses an operand: a pointer, a stride for each dimension of
// the rows (0 where the operand is broadcast) and a stride for the columns. The schedule decides
// the width N of a pack. The operand's pointer and strides decide its vector width W: a pack is
// read by N / W accesses of W elements each. An operand that all rows share, such as gamma, has
// rank 0.
#pragma once

#include <fusedops/core/float8.cuh>
#include <fusedops/core/halves.cuh>
#include <fusedops/core/memory.cuh>
#include <fusedops/functor/contract.cuh>
#include <fusedops/row/index.cuh>

namespace fusedops {
inline namespace FUSEDOPS_ABI {

/// The memory layout of the columns of an operand.
enum class Column { kBroadcast, kContiguous, kStrided };

/// The vector width of operands on a CPU, where the host compiler chooses the width of accesses.
inline constexpr int kAnyWidth = 0;

/// N values of an operand in the compute type, accessed by index. On a GPU they have been loaded
/// into registers.
template <class Compute, int N>
struct Values {
  Compute at[N];
  FUSEDOPS_HD Compute operator[](int i) const { return at[i]; }
};

/// One value that all N columns share, accessed by index.
template <class Compute>
struct Repeated {
  Compute one;
  FUSEDOPS_HD Compute operator[](int) const { return one; }
};

/// Values that stay in memory and are loaded when they are used, so that a host compiler makes one
/// vector loop of both.
template <class Compute, class T>
struct InPlace {
  const T* first;
  FUSEDOPS_HD Compute operator[](int i) const { return convert<Compute>(first[i]); }
};

#if !defined(FUSEDOPS_CUDA)
/// Converts N bytes to N words. GCC gives all vectors of a loop the element count that its
/// narrowest type allows, so a loop over bytes and floats would store short vectors of floats, and
/// the longer loads that follow would wait for these stores.
template <int N>
FUSEDOPS_HD void widen(const uint8_t* from, uint32_t (&to)[N]) {
  if constexpr (N % 16 == 0) {
    using Bytes = uint8_t __attribute__((vector_size(16)));
    using Halves = uint16_t __attribute__((vector_size(32)));
    using Words = uint32_t __attribute__((vector_size(64)));
    for (int i = 0; i < N; i += 16) {
      Bytes bytes;
      __builtin_memcpy(&bytes, from + i, sizeof(bytes));
      // GCC has instructions for each of these two steps, and none for both at once.
      const Words words = __builtin_convertvector(__builtin_convertvector(bytes, Halves), Words);
      __builtin_memcpy(to + i, &words, sizeof(words));
    }
  } else {
    for (int i = 0; i < N; ++i) to[i] = from[i];
  }
}
/// 16 halves of words to as many words: a loop that makes floats of 16 of them stores two short vectors,
/// for which the load of one of 64 bytes has to wait. Longer loops have long vectors by themselves.
FUSEDOPS_HD void widen(const uint16_t* from, uint32_t (&to)[16]) {
  using Halves = uint16_t __attribute__((vector_size(32)));
  using Words = uint32_t __attribute__((vector_size(64)));
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words);
  __builtin_memcpy(to, &words, sizeof(words));
}
#endif

template <class T, int kRank, Column kColumn, int W>
struct View {
  using Element = T;
  static constexpr int kAccess = W;
  T* data;
  RowMap<kRank> rows;
  int64_t column_stride;

  /// Whether a host converts a pack by instructions of its own.
  template <class Compute, int N>
  static constexpr bool kByHalves =
      kColumn == Column::kContiguous && W == kAnyWidth && detail::are_halves<T, Compute, N>();

  /// The address of a row's first column.
  template <class Row>
  FUSEDOPS_HD T* begin(const Row& row) const {
    return data + rows(row);
  }

  /// Returns N columns of an input from `col` on, accessed by index, in the compute type.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD auto fetch(const Row& row, int64_t col) const {
    const T* base = data + rows(row);
    if constexpr (kColumn == Column::kBroadcast) {
      return Repeated<Compute>{convert<Compute>(read_for<1>(row, base).at[0])};
#if !defined(FUSEDOPS_CUDA)
    } else if constexpr (kColumn == Column::kContiguous && W == kAnyWidth && sizeof(T) == 1 &&
                         detail::IsSame<Compute, uint32_t>::value) {
      Values<Compute, N> values;
      widen(reinterpret_cast<const uint8_t*>(base + col), values.at);
      return values;
    } else if constexpr (kByHalves<Compute, N>) {
      Values<float, N> values;
      floats_of_halves(base + col, values.at);
      return values;
    } else if constexpr (kColumn == Column::kContiguous && W == kAnyWidth && sizeof(T) == 2 &&
                         N == 16 && detail::IsSame<Compute, float>::value) {
      uint32_t words[N];
      widen(reinterpret_cast<const uint16_t*>(base + col), words);
      Values<float, N> values;
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) values.at[i] = Convert<float, T>::of_word(words[i]);
      return values;
#endif
    } else if constexpr (kColumn == Column::kContiguous && W == kAnyWidth) {
      return InPlace<Compute, T>{base + col};
    } else {
      Values<Compute, N> values;
      if constexpr (kColumn == Column::kContiguous) {
        constexpr int kStep = W < N ? W : N;
        Pack<T, kStep> pack[N / kStep];
        FUSEDOPS_UNROLL
        for (int j = 0; j < N / kStep; ++j) {
          pack[j] = read_for<kStep>(row, base + col + j * kStep);
        }
        FUSEDOPS_UNROLL
        for (int j = 0; j < N / kStep; ++j) unpack<kStep>(values.at, j * kStep, pack[j]);
      } else {
        FUSEDOPS_VECTOR
        for (int i = 0; i < N; ++i) {
          const T* from = base + (col + i) * column_stride;
          values.at[i] = convert<Compute>(read_for<1>(row, from).at[0]);
        }
      }
      return values;
    }
  }

  /// Loads N columns from `col` on into an array; a LOAD begins with this call.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read(Compute (&value)[N], const Row& row, int64_t col) const {
    const auto fetched = fetch<N, Compute>(row, col);
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) value[i] = fetched[i];
  }

#if defined(FUSEDOPS_MASKED_VECTORS)
  /// Whether the first columns of a pack are one access.
  static constexpr bool kCuts = kColumn == Column::kContiguous && W == kAnyWidth && sizeof(T) > 1;

  /// Loads those of N columns from `col` on that are less than `count`; the others become `padding`.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read_first(Compute (&value)[N], const Row& row, int64_t col, int count,
                              Compute padding) const {
    const T* base = data + rows(row) + col;
    if constexpr (sizeof(T) == 2 && N % 16 == 0 && detail::IsSame<Compute, float>::value) {
      const uint16_t* from = reinterpret_cast<const uint16_t*>(base);
      for (int first = 0; first < N; first += 16) {
        uint16_t halves[16];
        uint32_t words[16];
        FUSEDOPS_VECTOR
        for (int i = 0; i < 16; ++i) halves[i] = first + i < count ? from[first + i] : uint16_t(0);
        if constexpr (kByHalves<Compute, 16>) {
          float numbers[16];
          floats_of_halves(reinterpret_cast<const half*>(halves), numbers);
          FUSEDOPS_VECTOR
          for (int i = 0; i < 16; ++i) {
            value[first + i] = first + i < count ? numbers[i] : padding;
          }
          continue;
        }
        widen(halves, words);
        FUSEDOPS_VECTOR
        for (int i = 0; i < 16; ++i) {
          const float number = Convert<float, T>::of_word(words[i]);
          value[first + i] = first + i < count ? number : padding;
        }
      }
    } else {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) value[i] = i < count ? convert<Compute>(base[i]) : padding;
    }
  }

  /// Writes those of N values that are less than `count`.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void write_first(const Compute (&value)[N], const Row& row, int64_t col,
                               int count) const {
    T* base = data + rows(row) + col;
    if constexpr (kByHalves<Compute, N>) {
      half halves[N];
      halves_of_floats(value, halves);
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) {
        if (i < count) base[i] = halves[i];
      }
      return;
    }
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) {
      if (i < count) base[i] = convert<T>(value[i]);
    }
  }
#endif

  /// Prefetches N columns from `col` on into the L2 cache.
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row& row, int64_t col) const {
    if constexpr (kColumn == Column::kContiguous) {
      fusedops::prefetch<N>(data + rows(row) + col);
    }
  }

#if defined(FUSEDOPS_CUDA)
  /// Prefetches the columns from `begin` to `end`; `by` is the argument of prefetch_bytes().
  template <class Row, class By = Alone>
  __device__ __forceinline__ void prefetch_all(const Row& row, int64_t begin, int64_t end,
                                               By by = {}) const {
    if constexpr (kColumn == Column::kContiguous) {
      const T* base = data + rows(row);
      if (begin < end) prefetch_bytes(base + begin, base + end, by);
    }
  }
#endif

  /// Loads N columns that this thread has written earlier, those of a saved stream.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read_again(Compute (&value)[N], const Row& row, int64_t col) const {
    const T* base = data + rows(row);
    if constexpr (kColumn == Column::kContiguous && W != kAnyWidth) {
      constexpr int kStep = W < N ? W : N;
      FUSEDOPS_UNROLL
      for (int j = 0; j < N / kStep; ++j) {
        unpack<kStep>(value, j * kStep, read_back<kStep>(base + col + j * kStep));
      }
    } else if constexpr (kByHalves<Compute, N>) {
      floats_of_halves(base + col, value);
    } else if constexpr (kColumn == Column::kContiguous) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) value[i] = convert<Compute>(base[col + i]);
    } else {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) {
        value[i] = convert<Compute>(read_back<1>(base + (col + i) * column_stride).at[0]);
      }
    }
  }

  /// Rounds N values to the storage type and writes them.
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void write(const Compute (&value)[N], const Row& row, int64_t col) const {
    if constexpr (detail::ReadsAhead<Row>::kOnlyIssues) return;
    if constexpr (detail::is_guarded<Row>()) {
      if (!row.inside) return;
    }
    T* base = data + rows(row);
    if constexpr (kByHalves<Compute, N>) {
      halves_of_floats(value, base + col);
    } else if constexpr (kColumn == Column::kContiguous && W == kAnyWidth) {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) base[col + i] = convert<T>(value[i]);
    } else if constexpr (kColumn == Column::kContiguous) {
      constexpr int kStep = W < N ? W : N;
      FUSEDOPS_UNROLL
      for (int j = 0; j < N / kStep; ++j) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
        constexpr bool kEightBits =
            detail::IsSame<T, float8_e4m3>::value || detail::IsSame<T, float8_e5m2>::value;
        if constexpr (kEightBits && detail::IsSame<Compute, float>::value && kStep % 4 == 0) {
          Pack<uint32_t, kStep / 4> words;
          FUSEDOPS_UNROLL
          for (int i = 0; i < kStep / 4; ++i) {
            const int at = j * kStep + 4 * i;
            words.at[i] = four_of<T>(value[at], value[at + 1], value[at + 2], value[at + 3]);
          }
          fusedops::write<kStep / 4>(reinterpret_cast<uint32_t*>(base + col + j * kStep), words);
        } else
#endif
        {
          Pack<T, kStep> pack;
          FUSEDOPS_UNROLL
          for (int i = 0; i < kStep; ++i) pack.at[i] = convert<T>(value[j * kStep + i]);
#if defined(FUSEDOPS_ON_DEVICE)
          if constexpr (sizeof(pack) == 16 && detail::is_near<Row>()) {
            write_aligned(base + col + j * kStep, pack);
            continue;
          }
#endif
          fusedops::write<kStep>(base + col + j * kStep, pack);
        }
      }
    } else {
      FUSEDOPS_VECTOR
      for (int i = 0; i < N; ++i) base[(col + i) * column_stride] = convert<T>(value[i]);
    }
  }

  /// Rounds the values to the storage type, as write() followed by read_again() would.
  template <int N, class Compute>
  FUSEDOPS_HD void round(Compute (&value)[N]) const {
    round_to<T>(value);
  }

 private:
  /// T may be const, a pack's elements are not.
  template <int kStep, class Row>
  FUSEDOPS_HD static auto read_for(const Row& row, const T* from) {
    // What all rows share is not read ahead for a single row: it is there, in the L1 cache.
    if constexpr (detail::reads_ahead<Row>(kRank)) {
      return row.template read<kStep>(from);
    } else {
      return read_input<kStep>(from);
    }
  }

  template <int kStep, int N, class Compute>
  FUSEDOPS_HD static void unpack(Compute (&value)[N], int first, const Pack<T, kStep>& pack) {
#if defined(FUSEDOPS_ON_DEVICE)
    constexpr bool kByWords = detail::IsSame<T, bfloat16>::value && kStep > 1;
#else
    constexpr bool kByWords = false;
#endif
    if constexpr (kByWords) {
      // Two values in one word take one instruction each to convert, separate ones take three.
      struct Words {
        uint32_t at[kStep / 2];
      };
      const Words words = bit_cast<Words>(pack);
      FUSEDOPS_UNROLL
      for (int i = 0; i < kStep; i += 2) {
        value[first + i] = bit_cast<float>(words.at[i / 2] << 16);
        value[first + i + 1] = bit_cast<float>(words.at[i / 2] & 0xffff0000u);
      }
    } else {
      FUSEDOPS_UNROLL
      for (int i = 0; i < kStep; ++i) value[first + i] = convert<Compute>(pack.at[i]);
    }
  }
};

/// The type of an operand that the declaration leaves out.
struct Absent {
  uint64_t unused;
};

/// The type of an operand that the backward pass does not read, and that was not saved for it. It
/// reads as zero.
struct Unread {
  uint64_t unused;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD Repeated<Compute> fetch(const Row&, int64_t) const {
    return {Compute(0)};
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read(Compute (&value)[N], const Row&, int64_t) const {
    FUSEDOPS_VECTOR
    for (int i = 0; i < N; ++i) value[i] = Compute(0);
  }
  template <int N, class Compute, class Row>
  FUSEDOPS_HD void read_again(Compute (&value)[N], const Row& row, int64_t col) const {
    read(value, row, col);
  }
  template <int N, class Row>
  FUSEDOPS_HD void prefetch(const Row&, int64_t) const {}
#if defined(FUSEDOPS_CUDA)
  template <class Row, class By>
  __device__ __forceinline__ void prefetch_all(const Row&, int64_t, int64_t, By) const {}
#endif
};

/// An operand for which the call gives a number, not a tensor.
template <class Number>
struct Value {
  Word<Number> number;

  template <int N, class Compute, class Row>
  FUSEDOPS_HD Repeated<Compute> fetch(const Row&, int64_t) const {
    return {static_cast<Compute>(number.value)};
  }
};

}  // namespace FUSEDOPS_ABI
}  // namespace fusedops
