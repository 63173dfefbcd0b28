// Traits of AVX2 with FMA and F16C, and if AVX_VNNI is defined, of AVX-VNNI.
#pragma once

#include <immintrin.h>

namespace jumok {
namespace ISA {
namespace {
constexpr int kLanes = 8;
}
}  // namespace ISA
}  // namespace jumok

#include "isa/vector_extensions.h"

namespace jumok {
namespace ISA {
namespace {

struct Vec : VectorExtensions {
  using Bytes = __m256i;

  static constexpr int kHeadVectors = 8;

  static Floats all(float value) { return (Floats)_mm256_set1_ps(value); }

  static Floats add_product(Floats sum, Floats a, Floats b) {
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
  }

  static Floats bounded_exponent(Floats x) { return (Floats)_mm256_max_ps((__m256)all(-87.0f), (__m256)x); }

  static Floats from_half(const Half* from) {
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static float from_half(Half half) { return _cvtsh_ss(half); }
  static void to_half(Floats numbers, Half* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)numbers, _MM_FROUND_TO_NEAREST_INT));
  }
  static Half to_half(float number) { return _cvtss_sh(number, _MM_FROUND_TO_NEAREST_INT); }

  static Floats from_int8(const Int8* from) {
    return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static void to_int8(Floats numbers, Int8* to) {
    const __m256i whole = _mm256_cvtps_epi32((__m256)numbers);
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(words, words));
  }
  static void to_uint8(Floats numbers, int32_t zero_point, uint8_t* to) {
    // Conversion turns NaN and too small numbers into the least integer.
    const __m256i whole = (__m256i)((Ints)_mm256_cvtps_epi32((__m256)numbers) + zero_point);
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
  }

  static Bytes load_bytes(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static Bytes four_bytes(const void* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm256_set1_epi32(four);
  }

#if defined(AVX_VNNI)
  static Ints dot(Ints sum, Bytes inputs, Bytes weights) {
    return (Ints)_mm256_dpbusd_avx_epi32((__m256i)sum, inputs, weights);
  }
#else
  static constexpr bool kOverflowGroups = true;

  // int16 weights of two inputs a lane, from int8.
  static Bytes widened(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  // The first or last two of four uint8 inputs, which all lanes have, as int16.
  static Bytes two_inputs(Bytes four, int half) {
    return _mm256_shuffle_epi8(four, _mm256_set1_epi32(half == 0 ? 0x80018000 : 0x80038002));
  }
  // Adds the products of each lane's two int16.
  static Ints dot_of_two(Ints sum, Bytes inputs, Bytes weights) {
    return sum + (Ints)_mm256_madd_epi16(inputs, weights);
  }
  // int16 sums of the products of neighboring uint8 inputs and int8 weights.
  static Bytes paired_products(Bytes inputs, Bytes weights) { return _mm256_maddubs_epi16(inputs, weights); }
  static Bytes added_pairs(Bytes a, Bytes b) { return _mm256_add_epi16(a, b); }
  // Adds each lane's two int16.
  static Ints add_pairs(Ints sum, Bytes pairs) { return sum + (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }
#endif
};

}  // namespace
}  // namespace ISA
}  // namespace jumok
