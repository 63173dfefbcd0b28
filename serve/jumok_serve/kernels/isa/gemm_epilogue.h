// Epilogue of a product: zero point, scales, factors of rows, bias, activation, quantization.
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "isa/gemm.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

constexpr int kPanelVectors = Vec::kPanelVectors;
constexpr int64_t kPanelColumns = kPanelVectors * kLanes;
constexpr int kInputOffset = Vec::kSignedInputs ? 128 : 0;  // taken from quantized inputs when they are prepared

inline Floats silu(Floats x) {
  const Floats small = exponential(x < 0.0f ? x : -x);  // e^-|x|
  return x * (x < 0.0f ? small : all(1.0f)) / (small + 1.0f);
}

// x times the standard normal distribution function; erf by formula 7.1.26 of Abramowitz and Stegun.
inline Floats gelu(Floats x) {
  const Floats distance = (x < 0.0f ? -x : x) * 0.70710678f;
  const Floats t = 1.0f / (distance * 0.3275911f + 1.0f);
  Floats tail = t * 1.061405429f - 1.453152027f;
  tail = tail * t + 1.421413741f;
  tail = tail * t - 0.284496736f;
  tail = tail * t + 0.254829592f;
  tail *= t * exponential(-distance * distance) * 0.5f;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// Initial sums of a panel's columns, and what is done with the sums of a tile.
template <typename Kind>
class Epilogue {
 public:
  using Sum = typename Kind::Sum;
  template <int kRows>
  using Sums = Sum[kRows][kPanelVectors];

  explicit Epilogue(const PanelGemm<typename Kind::Number>& product)
      : product_(product),
        quantizer_(product.quantization),
        lower_bound_(all(product.activation == Activation::kRelu && product.factors == nullptr ? 0.0f : -INFINITY)),
        through_buffer_(product.activation == Activation::kSilu || product.activation == Activation::kGelu ||
                        product.columns < kPanelColumns || product.factors != nullptr) {
    for (int64_t i = 0; i < product.columns; ++i) {
      if constexpr (kQuantizedInputs) {
        offsets_[i] = -product.weight_sums[i] * (product.zero_point - kInputOffset);
        scales_[i] = product.scales[i] * product.scale;
      }
    }
    // Apart from the loop: there, compilers load with a mask from a null pointer, which emulators refuse.
    if (product.bias != nullptr)
      std::copy_n(product.bias, product.columns, product.factors == nullptr ? bias_ : bias_after_factors_);
    else
      std::fill_n(bias_after_factors_, kPanelColumns, -0.0f);  // which changes no number, and no sign of a zero
  }

  // Initial sums of columns.
  Sum first(int vector) const {
    Sum sum = {};
    if constexpr (kQuantizedInputs) std::memcpy(&sum, offsets_ + vector * kLanes, sizeof sum);
    return sum;
  }

  template <int kRows>
  [[gnu::always_inline]] void write(const Sums<kRows>& sums, int64_t row) const {
    const int64_t stride = product_.stride;
    if (through_buffer_) {
      float made[kRows * kPanelColumns];
      store_all<kRows>(sums, made, kPanelColumns, [](Floats x, float* to) { store(x, to); });
      write_through_buffer(made, kRows, row);
    } else if (product_.out != nullptr) {
      store_all<kRows>(sums, product_.out + row * stride, stride, [](Floats x, float* to) { store(x, to); });
    } else {
      store_all<kRows>(sums, product_.quantized_out + row * stride, stride,
                       [this](Floats x, uint8_t* to) { quantizer_.store(x, to); });
    }
  }

 private:
  static constexpr bool kQuantizedInputs = std::is_same_v<typename Kind::Number, uint8_t>;

  template <int kRows, typename Result, typename Store>
  [[gnu::always_inline]] void store_all(const Sums<kRows>& sums, Result* to, int64_t stride, Store store_one) const {
    for_each<kRows * kPanelVectors>([&](auto number) __attribute__((always_inline)) {
      constexpr int kRow = number / kPanelVectors, kVector = number % kPanelVectors;
      store_one(result(sums[kRow][kVector], kVector), to + kRow * stride + kVector * kLanes);
    });
  }

  Floats result(Sum sum, int vector) const {
    Floats x;
    if constexpr (kQuantizedInputs)
      x = unfused(__builtin_convertvector(sum, Floats) * load(scales_ + vector * kLanes)) +
          load(bias_ + vector * kLanes);
    else
      x = sum + load(bias_ + vector * kLanes);
    return larger(lower_bound_, x);  // NaN stays
  }

  // Writes results of a slow activation, of an incomplete panel, or of rows with factors. Not inlined, so that it is
  // compiled once for all tiles.
  [[gnu::noinline]] void write_through_buffer(const float* numbers, int64_t rows, int64_t first) const {
    const bool whole = product_.out != nullptr && product_.columns == kPanelColumns;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = (first + row) * product_.stride;
      float made[kPanelColumns];
      uint8_t quantized[kPanelColumns];
      float* const to = whole ? product_.out + at : made;
      for (int i = 0; i < kPanelVectors; ++i) {
        Floats x = load(numbers + row * kPanelColumns + i * kLanes);
        if (product_.factors != nullptr)
          x = unfused(x * product_.factors[first + row]) + load(bias_after_factors_ + i * kLanes);
        if (product_.activation == Activation::kRelu) x = larger(Floats{}, x);
        if (product_.activation == Activation::kSilu) x = silu(x);
        if (product_.activation == Activation::kGelu) x = gelu(x);
        store(x, to + i * kLanes);
        if (product_.out == nullptr) quantizer_.store(x, quantized + i * kLanes);
      }
      if (product_.out == nullptr)
        std::copy(quantized, quantized + product_.columns, product_.quantized_out + at);
      else if (!whole)
        std::copy(made, made + product_.columns, product_.out + at);
    }
  }

  const PanelGemm<typename Kind::Number> product_;
  const Quantizer quantizer_;
  const Floats lower_bound_;
  const bool through_buffer_;
  alignas(Floats) int32_t offsets_[kPanelColumns] = {};
  alignas(Floats) float scales_[kPanelColumns] = {}, bias_[kPanelColumns] = {}, bias_after_factors_[kPanelColumns] = {};
};

}  // namespace
}  // namespace ISA
}  // namespace jumok
