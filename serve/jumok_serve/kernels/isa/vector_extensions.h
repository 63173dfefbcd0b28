// Operations on vectors of kLanes floats by the compiler's vector extensions, for any processor. The traits of an
// instruction set, `Vec`, derive from these and replace those that it has instructions for.
#pragma once

#include <cstdint>
#include <cstring>

#include "isa/row.h"

namespace jumok {
namespace ISA {
namespace {

struct VectorExtensions {
  typedef float Floats __attribute__((vector_size(4 * kLanes)));
  typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
  typedef int8_t Int8s __attribute__((vector_size(kLanes)));
  typedef uint8_t Uint8s __attribute__((vector_size(kLanes)));
  using Bytes = Words;  // four bytes a lane, which a product of quantized numbers multiplies

  static constexpr int kPanelVectors = 2;           // columns of a product that are computed together
  static constexpr int kHeadVectors = 4;            // numbers of a head whose sums are kept in registers together
  static constexpr bool kSignedInputs = false;      // true if `dot` takes uint8 inputs less 128, as int8
  static constexpr bool kOverflowGroups = false;    // true if int8 products are summed in overflow groups
  static constexpr bool kIntegerAttention = false;  // true if int8 keys have attention of their own

  static Floats all(float value) { return value - Floats{}; }

  static Floats add_product(Floats sum, Floats a, Floats b) { return sum + a * b; }

  // x, or -87 if it is less; NaN stays.
  static Floats bounded_exponent(Floats x) { return x < -87.0f ? all(-87.0f) : x; }

  // e^x = 2^rest * 2^whole, for a bounded x; NaN for NaN.
  struct Power {
    Floats whole, rest;  // `whole` as `scaled` takes it
  };
  static Power power_of_e(Floats x) {
    const Floats logarithm = x * 1.44269504f;
    const Floats shifted = logarithm + kShift, whole = shifted - kShift;
    return {shifted, logarithm - whole};
  }
  static Floats scaled(Floats number, Floats shifted) { return number * (Floats)(((Ints)shifted + 127) << 23); }

  static Floats from_half(const Half* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    const Ints bits = __builtin_convertvector(halves, Ints), number = bits & 0x7fff;
    const Floats finite = (Floats)(number << 13) * 0x1p112f;  // subnormal ones too
    const Ints special = (number << 13) | 0x7f800000;         // infinity and NaN
    return (Floats)((number < 0x7c00 ? (Ints)finite : special) | (Ints)((Words)(bits & 0x8000) << 16));
  }
  static float from_half(Half half) {
    Half halves[kLanes] = {half};
    return from_half(halves)[0];
  }

  // Rounds to the nearest, to the even one of two.
  static void to_half(Floats numbers, Half* to) {
    const Ints bits = (Ints)numbers, size = bits & 0x7fffffff;
    const Ints bounded = size < 0x47800000 ? size : Ints{} + 0x47800000;  // 2^16 is infinite
    const Ints exponent = (bounded & 0x7f800000) > 0x38800000 ? bounded & 0x7f800000 : Ints{} + 0x38800000;
    // A sum with 2^13 times the number's power of two is rounded to a half's bits; below 2^-14 these do not get fewer.
    const Floats step = (Floats)(exponent + (13 << 23));
    const Ints rounded = (Ints)((Floats)bounded + step) - (Ints)step + ((exponent - 0x38800000) >> 13);
    const Ints made = size > 0x7f800000 ? ((size >> 13) & 0x3ff) | 0x7e00 : rounded;  // NaN stays
    const Halves halves = __builtin_convertvector(made | ((bits >> 16) & 0x8000), Halves);
    std::memcpy(to, &halves, sizeof halves);
  }
  static Half to_half(float number) {
    Half halves[kLanes];
    to_half(all(number), halves);
    return halves[0];
  }

  static Floats from_int8(const Int8* from) {
    Int8s bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Floats);
  }

  // Rounds numbers within -128 .. 127.
  static void to_int8(Floats numbers, Int8* to) {
    const Int8s bytes = __builtin_convertvector(rounded(numbers), Int8s);
    std::memcpy(to, &bytes, sizeof bytes);
  }

  // Rounds numbers to 512, adds the zero point, and saturates; NaN becomes 0.
  static void to_uint8(Floats numbers, int32_t zero_point, uint8_t* to) {
    Ints whole = rounded(numbers > -512.0f ? numbers : all(-512.0f)) + zero_point;
    whole = whole < 0 ? Ints{} : whole;
    const Uint8s bytes = __builtin_convertvector(whole > 255 ? Ints{} + 255 : whole, Uint8s);
    std::memcpy(to, &bytes, sizeof bytes);
  }

  static Bytes load_bytes(const int8_t* from) {
    Bytes bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return bytes;
  }

  // The same four bytes in all lanes.
  static Bytes four_bytes(const uint8_t* from) {
    uint32_t four;
    std::memcpy(&four, from, sizeof four);
    return Bytes{} + four;
  }

  // Adds the products of each lane's four inputs (uint8) and weights (int8).
  static Ints dot(Ints sum, Bytes inputs, Bytes weights) {
    for (int bits = 0; bits < 32; bits += 8)
      sum += (Ints)((inputs >> bits) & 255) * ((Ints)(weights << (24 - bits)) >> 24);
    return sum;
  }

 private:
  static constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer in the last bits

  static Ints rounded(Floats numbers) { return (Ints)(numbers + kShift) - (Ints)all(kShift); }
};

}  // namespace
}  // namespace ISA
}  // namespace jumok
