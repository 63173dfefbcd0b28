// SIMD vectors of floats or int32, and operations on them, of the instruction set whose traits `Vec` are included
// first.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "isa/row.h"

namespace jumok {
namespace ISA {
namespace {

using Floats = Vec::Floats;
using Ints = Vec::Ints;
using Lanes = std::make_integer_sequence<int, kLanes>;

template <typename Part, int... kNumbers>
[[gnu::always_inline]] inline void for_each_of(Part part, std::integer_sequence<int, kNumbers...>) {
  (part(std::integral_constant<int, kNumbers>{}), ...);
}

// Calls `part` with each number below kCount. Unrolled by force, as arrays indexed in a loop leave the registers.
template <int kCount, typename Part>
[[gnu::always_inline]] inline void for_each(Part part) {
  for_each_of(part, std::make_integer_sequence<int, kCount>{});
}

inline Floats load(const float* from) {
  Floats vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline Floats load(const Half* from) { return Vec::from_half(from); }
inline Floats load(const Int8* from) { return Vec::from_int8(from); }

inline void store(Floats vector, float* to) { std::memcpy(to, &vector, sizeof vector); }

inline void store(Floats vector, Half* to) { Vec::to_half(vector, to); }
inline void store(Floats vector, Int8* to) { Vec::to_int8(vector, to); }

inline Floats all(float value) { return Vec::all(value); }

// Keeps a product apart from the addition after it, which would otherwise be fused with it and not round it. On other
// processors than these, kernels are compiled without fusion.
template <typename Number>
inline Number unfused(Number product) {
#if defined(__x86_64__)
  asm("" : "+v"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats magnitude(Floats x) { return (Floats)((Ints)x & 0x7fffffff); }

// e^x for x <= 0, as 2^whole * 2^rest; NaN for NaN. The polynomial has the least relative error on [-0.5, 0.5] among
// those that are 1 at 0 (Lawson's algorithm): 1e-7. The rounding error of x / ln 2 adds to it and grows with -x.
// e^-infinity is 0; without AVX-512, x below -87 counts as -87.
inline Floats exponential(Floats x) {
  const Vec::Power power = Vec::power_of_e(Vec::bounded_exponent(x));
  Floats sum = all(1.326472731e-3f);
  sum = sum * power.rest + 9.671512991e-3f;
  sum = sum * power.rest + 5.550733581e-2f;
  sum = sum * power.rest + 2.402224243e-1f;
  sum = sum * power.rest + 6.931470037e-1f;
  sum = sum * power.rest + 1.0f;
  return Vec::scaled(sum, power.whole);
}

// Picks lanes of `a` and, from kLanes on, of `b`, by constant numbers.
template <int... kOrder>
inline Floats shuffled(Floats a, Floats b, std::integer_sequence<int, kOrder...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kOrder...);
#else
  return __builtin_shuffle(a, b, Ints{kOrder...});
#endif
}

// Swaps lanes i and i ^ N.
template <int N, int... kLane>
inline Floats swapped(Floats x, std::integer_sequence<int, kLane...>) {
  return shuffled(x, x, std::integer_sequence<int, (kLane ^ N)...>());
}

struct Added {
  Floats operator()(Floats a, Floats b) const { return a + b; }
};
struct Larger {
  Floats operator()(Floats a, Floats b) const { return larger(a, b); }
};
// Compares magnitudes by their bits, so that NaN is the largest.
struct LargerMagnitude {
  Floats operator()(Floats a, Floats b) const { return (Ints)a > (Ints)b ? a : b; }
};

// Combines all lanes.
template <typename Combined, int N = kLanes / 2>
inline float of_lanes(Floats x) {
  x = Combined()(x, swapped<N>(x, Lanes()));
  if constexpr (N > 1) return of_lanes<Combined, N / 2>(x);
  return x[0];
}

inline float sum_of(Floats x) { return of_lanes<Added>(x); }
inline float largest_of(Floats x) { return of_lanes<Larger>(x); }

// Combines pairs of lanes: those of `a` where bit N of the lane is 0, else those of `b`.
template <typename Combined, int N, int... kLane>
inline Floats paired(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  const auto own = std::integer_sequence<int, (kLane & N ? kLane + kLanes : kLane)...>();
  const auto other = std::integer_sequence<int, (kLane & N ? (kLane ^ N) + kLanes : kLane ^ N)...>();
  return Combined()(shuffled(a, b, own), shuffled(a, b, other));
}

// Combines lanes of kCount vectors: lane i comes from vector i / N % kCount, combined over lanes that differ from i in
// the bits from N to below N * kCount. With kLanes vectors, lane i is all of vector i.
template <typename Combined, int kCount, int N = 1>
inline Floats each_of(Floats* vectors) {
  if constexpr (kCount == 1) {
    return vectors[0];
  } else {
    for (int i = 0; i < kCount; i += 2) vectors[i / 2] = paired<Combined, N>(vectors[i], vectors[i + 1], Lanes());
    return each_of<Combined, kCount / 2, 2 * N>(vectors);
  }
}

// Combines the lanes of each quarter, into all its lanes.
template <typename Combined, int N = 1>
inline Floats of_quarters(Floats x) {
  if constexpr (N < kLanes / 4) return of_quarters<Combined, 2 * N>(Combined()(x, swapped<N>(x, Lanes())));
  return x;
}

// Combines each of four vectors into one quarter.
template <typename Combined>
inline Floats of_four(Floats* vectors) {
  return of_quarters<Combined>(each_of<Combined, 4, kLanes / 4>(vectors));
}

// Prefetches kVectors vectors. Inlined by force: GCC may drop calls of a function without other effects.
template <int kVectors, typename Element>
[[gnu::always_inline]] inline void prefetch(const Element* first) {
  constexpr int kLine = 64, kBytes = kVectors * kLanes * static_cast<int>(sizeof(Element));
#pragma GCC unroll 16
  for (int i = 0; i < kBytes; i += kLine) __builtin_prefetch(reinterpret_cast<const char*>(first) + i);
}

// Quantizes numbers to uint8.
struct Quantizer {
  explicit Quantizer(Quantization to) : inverse_scale(1.0f / to.scale), zero_point(to.zero_point) {}

  // Saturates; NaN becomes 0.
  void store(Floats numbers, uint8_t* to) const {
    numbers *= inverse_scale;  // a division takes several times as long as the rest
    Vec::to_uint8(numbers > 512.0f ? all(512.0f) : numbers, zero_point, to);
  }

  float inverse_scale;
  int32_t zero_point;
};

}  // namespace
}  // namespace ISA
}  // namespace jumok
