// Traits of NEON with dot products of int8; if I8MM is defined, of uint8 with int8.
#pragma once

#include <arm_neon.h>

namespace jumok {
namespace ISA {
namespace {
constexpr int kLanes = 4;
}
}  // namespace ISA
}  // namespace jumok

#include "isa/vector_extensions.h"

namespace jumok {
namespace ISA {
namespace {

struct Vec : VectorExtensions {
  using Bytes = int8x16_t;

  static constexpr int kPanelVectors = 4;

  static Floats add_product(Floats sum, Floats a, Floats b) {
    return (Floats)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
  }

  static Floats bounded_exponent(Floats x) { return (Floats)vmaxq_f32((float32x4_t)x, vdupq_n_f32(-87.0f)); }

  static Floats from_half(const Half* from) { return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
  static float from_half(Half half) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0); }
  static void to_half(Floats numbers, Half* to) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)numbers)));
  }
  static Half to_half(float number) {
    return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(number))), 0);
  }

  static Floats from_int8(const Int8* from) {
    uint32_t four;
    std::memcpy(&four, from, sizeof four);
    return (Floats)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
  }
  static void to_int8(Floats numbers, Int8* to) {
    const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32((float32x4_t)numbers));
    store_four(vreinterpret_u8_s8(vqmovn_s16(vcombine_s16(words, words))), to);
  }
  static void to_uint8(Floats numbers, int32_t zero_point, uint8_t* to) {
    // Conversion would turn NaN into 0, not into the least integer.
    const float32x4_t bounded = vmaxnmq_f32((float32x4_t)numbers, vdupq_n_f32(-512.0f));
    const uint16x4_t words = vqmovun_s32(vaddq_s32(vcvtnq_s32_f32(bounded), vdupq_n_s32(zero_point)));
    store_four(vqmovn_u16(vcombine_u16(words, words)), to);
  }

  static Bytes load_bytes(const int8_t* from) { return vld1q_s8(from); }
  static Bytes four_bytes(const uint8_t* from) {
    uint32_t four;
    std::memcpy(&four, from, sizeof four);
    return vreinterpretq_s8_u32(vdupq_n_u32(four));
  }

#if defined(I8MM)
  static Ints dot(Ints sum, Bytes inputs, Bytes weights) {
    return (Ints)vusdotq_s32((int32x4_t)sum, vreinterpretq_u8_s8(inputs), weights);
  }
#else
  static constexpr bool kSignedInputs = true;

  static Ints dot(Ints sum, Bytes inputs, Bytes weights) { return (Ints)vdotq_s32((int32x4_t)sum, inputs, weights); }
#endif

 private:
  static void store_four(uint8x8_t bytes, void* to) {
    const uint32_t four = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
    std::memcpy(to, &four, sizeof four);
  }
};

}  // namespace
}  // namespace ISA
}  // namespace jumok
