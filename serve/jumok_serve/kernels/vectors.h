// Vectors of numbers, and what is done with each; LANES is how many there are in one, VECTORS a name for it all.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <utility>

#include "rows.h"

namespace jumok {
namespace VECTORS {
namespace {

constexpr int kLanes = LANES;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
using Lanes = std::make_integer_sequence<int, kLanes>;

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

// Whole numbers from -128 to 127 that are nearest.
inline void store(Floats vector, Int8* to) {
#if LANES == 16
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)vector)));
#else
  const __m256i whole = _mm256_cvtps_epi32((__m256)vector);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
#endif
}

inline Floats all(float value) { return Floats{} + value; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats magnitude(Floats x) { return (Floats)((Ints)x & 0x7fffffff); }

// Whole numbers nearest to x, for |x| < 2^22.
inline Floats rounded(Floats x) {
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it leaves no fraction
  return (x + magic) - magic;
}

// e^x for x <= 0; what is below e^-87 is rounded up to it. The polynomial is that of Cephes' expf (Moshier).
inline Floats exponential(Floats x) {
  x = x < -87.0f ? all(-87.0f) : x;  // NaN stays
  const Floats whole = rounded(x * 1.44269504f);
  const Floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats sum = all(1.9875691500e-4f);
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * (rest * rest) + rest + 1.0f;
  return sum * (Floats)((__builtin_convertvector(whole, Ints) + 127) << 23);
}

// What makes levels of numbers.
struct Rounding {
  explicit Rounding(Levels levels) : share(1.0f / levels.scale), zero_point(levels.zero_point) {}

  // The levels of numbers; those of what is far outside are the first and the last.
  void store(Floats numbers, uint8_t* to) const {
    numbers *= share;  // a division takes several times as long as all the rest
    numbers = numbers < -512.0f ? all(-512.0f) : numbers;
    numbers = numbers > 512.0f ? all(512.0f) : numbers;
    Ints whole = __builtin_convertvector(rounded(numbers), Ints) + zero_point;
    whole = whole < 0 ? Ints{} : whole;
    whole = whole > 255 ? Ints{} + 255 : whole;
    typedef uint8_t Bytes __attribute__((vector_size(LANES)));
    const Bytes bytes = __builtin_convertvector(whole, Bytes);
    std::memcpy(to, &bytes, sizeof bytes);
  }

  float share;
  int32_t zero_point;
};

}  // namespace
}  // namespace VECTORS
}  // namespace jumok
