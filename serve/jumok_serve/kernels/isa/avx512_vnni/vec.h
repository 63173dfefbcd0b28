// Traits of AVX-512 with VNNI.
#pragma once

#include <immintrin.h>

namespace jumok {
namespace ISA {
namespace {
constexpr int kLanes = 16;
}
}  // namespace ISA
}  // namespace jumok

#include "isa/vector_extensions.h"

namespace jumok {
namespace ISA {
namespace {

struct Vec : VectorExtensions {
  using Bytes = __m512i;

  static constexpr int kPanelVectors = 4, kHeadVectors = 8;
  static constexpr bool kIntegerAttention = true;

  static Floats all(float value) { return (Floats)_mm512_set1_ps(value); }

  static Floats add_product(Floats sum, Floats a, Floats b) {
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
  }

  static Floats bounded_exponent(Floats x) { return x; }  // e^-infinity is 0
  static Power power_of_e(Floats x) {
    const Floats logarithm = x * 1.44269504f;
    const Floats whole = (Floats)_mm512_roundscale_ps((__m512)logarithm, _MM_FROUND_TO_NEAREST_INT);
    return {whole, logarithm - whole};
  }
  static Floats scaled(Floats number, Floats whole) {
    return (Floats)_mm512_scalef_ps((__m512)number, (__m512)whole);  // of -infinity, 0 for any number
  }

  static Floats from_half(const Half* from) {
    return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static float from_half(Half half) { return _cvtsh_ss(half); }
  static void to_half(Floats numbers, Half* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)numbers, _MM_FROUND_TO_NEAREST_INT));
  }
  static Half to_half(float number) { return _cvtss_sh(number, _MM_FROUND_TO_NEAREST_INT); }

  static Floats from_int8(const Int8* from) {
    return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static void to_int8(Floats numbers, Int8* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32((__m512)numbers)));
  }
  static void to_uint8(Floats numbers, int32_t zero_point, uint8_t* to) {
    // Conversion turns NaN and too small numbers into the least integer.
    Ints whole = (Ints)_mm512_cvtps_epi32((__m512)numbers) + zero_point;
    whole = whole < 0 ? Ints{} : whole;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtusepi32_epi8((__m512i)whole));
  }

  static Bytes load_bytes(const int8_t* from) { return _mm512_loadu_si512(from); }
  static Bytes four_bytes(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Ints dot(Ints sum, Bytes inputs, Bytes weights) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sum, inputs, weights);
  }
};

}  // namespace
}  // namespace ISA
}  // namespace jumok
