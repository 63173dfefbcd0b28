// SIMD vectors of LANES floats or int32, and operations on them, in the namespace ISA.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "isa/row.h"

namespace jumok {
namespace ISA {
namespace {

constexpr int kLanes = LANES;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
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

inline Floats load(const Half* from) {
#if LANES == 16
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}

inline Floats load(const Int8* from) {
#if LANES == 16
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#endif
}

inline void store(Floats vector, float* to) { std::memcpy(to, &vector, sizeof vector); }

inline void store(Floats vector, Half* to) {
#if LANES == 16
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)vector, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)vector, _MM_FROUND_TO_NEAREST_INT));
#endif
}

// Rounds to int8; numbers must be within -128 .. 127.
inline void store(Floats vector, Int8* to) {
#if LANES == 16
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)vector)));
#else
  const __m256i whole = _mm256_cvtps_epi32((__m256)vector);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
#endif
}

inline Floats all(float value) {
#if LANES == 16
  return (Floats)_mm512_set1_ps(value);
#else
  return (Floats)_mm256_set1_ps(value);
#endif
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats magnitude(Floats x) { return (Floats)((Ints)x & 0x7fffffff); }

// e^x for x <= 0, as 2^whole * 2^rest; NaN for NaN. The polynomial has the least relative error on [-0.5, 0.5] among
// those that are 1 at 0 (Lawson's algorithm): 1e-7. The rounding error of x / ln 2 adds to it and grows with -x.
// e^-infinity is 0; without AVX-512, x below -87 counts as -87.
inline Floats exponential(Floats x) {
#if LANES == 16
  const Floats logarithm = x * 1.44269504f;
  const Floats whole = (Floats)_mm512_roundscale_ps((__m512)logarithm, _MM_FROUND_TO_NEAREST_INT);
#else
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it leaves the integer in the last bits
  const Floats logarithm = (Floats)_mm256_max_ps((__m256)all(-87.0f), (__m256)x) * 1.44269504f;  // NaN stays
  const Floats shifted = logarithm + magic, whole = shifted - magic;
#endif
  const Floats rest = logarithm - whole;
  Floats sum = all(1.326472731e-3f);
  sum = sum * rest + 9.671512991e-3f;
  sum = sum * rest + 5.550733581e-2f;
  sum = sum * rest + 2.402224243e-1f;
  sum = sum * rest + 6.931470037e-1f;
  sum = sum * rest + 1.0f;
#if LANES == 16
  return (Floats)_mm512_scalef_ps((__m512)sum, (__m512)whole);  // of -infinity, 0 for any sum
#else
  return sum * (Floats)(((Ints)shifted + 127) << 23);
#endif
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

template <int N = kLanes / 2>
inline float sum_of(Floats x) {
  x += swapped<N>(x, Lanes());
  if constexpr (N > 1) return sum_of<N / 2>(x);
  return x[0];
}

template <int N = kLanes / 2>
inline float largest_of(Floats x) {
  x = larger(x, swapped<N>(x, Lanes()));
  if constexpr (N > 1) return largest_of<N / 2>(x);
  return x[0];
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
template <typename Combined>
inline Floats of_quarters(Floats x) {
  x = Combined()(x, swapped<1>(x, Lanes()));
  if constexpr (kLanes == 16) x = Combined()(x, swapped<2>(x, Lanes()));
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
    numbers = numbers > 512.0f ? all(512.0f) : numbers;
    // Conversion turns NaN and too small numbers into the least integer.
#if LANES == 16
    Ints whole = (Ints)_mm512_cvtps_epi32((__m512)numbers) + zero_point;
    whole = whole < 0 ? Ints{} : whole;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8((__m512i)whole));
#else
    const __m256i whole = (__m256i)((Ints)_mm256_cvtps_epi32((__m256)numbers) + zero_point);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
#endif
  }

  float inverse_scale;
  int32_t zero_point;
};

}  // namespace
}  // namespace ISA
}  // namespace jumok
