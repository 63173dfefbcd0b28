// Residual connection, layer normalization, and the quantized result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "isa/row.h"
#include "operators/operator.h"

namespace jumok {

// Layer norm of sums. Weight and bias, and for a quantized result scale and zero point, are inputs from `first` on.
// Outputs are the sum and the norm, both optional, and the quantized norm.
template <bool kQuantized>
class LayerNorm {
 public:
  struct Results {
    Tensor sum, norm, quantized;
    float* sums;  // where the sum is computed if not an output: in the norm, or in memory of this thread
  };

  LayerNorm(Settings& settings, size_t first)
      : weight_(settings.constant(first)),
        bias_(settings.constant(first + 1)),
        epsilon_(settings.get<float>("epsilon")),
        in_order_(settings.get_or("in_order", 0) != 0) {
    if constexpr (kQuantized) quantization_ = settings.quantization<Quantization>(first + 2, first + 3);
  }

  bool fits(int64_t width) const { return weight_.count() == width && bias_.count() == width; }

  Results results(Call& call, const Tensor& like) const {
    Results results;
    results.sum = call.output(0, like.sizes, like.axes);
    results.norm = call.output(1, like.sizes, like.axes);
    if constexpr (kQuantized) results.quantized = call.output(2, like.sizes, like.axes);
    // Kept, as memory allocated at each call may go back to the system and be mapped again page by page.
    static thread_local std::vector<float> own;
    if (!results.sum && !results.norm) own.resize(std::max(own.size(), static_cast<size_t>(like.count())));
    results.sums = (results.sum ? results.sum : results.norm).template as<float>();
    if (results.sums == nullptr) results.sums = own.data();
    return results;
  }

  // Of x [rows, width] and y [repeated, width], repeated for all rows; the sums may overwrite either.
  void compute(Call& call, int64_t rows, const float* x, const float* y, int64_t repeated,
               const Results& results) const {
    const int64_t width = weight_.count();
    call.parallel_for(rows, rows * width, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last;) {
        const int64_t of_y = row % repeated, count = std::min(last - row, repeated - of_y), place = row * width;
        row_kernels()->add_norm(
            {count, width, x + place, y + of_y * width, weight_.as<float>(), bias_.as<float>(), epsilon_, in_order_,
             results.sums + place, results.norm ? results.norm.template as<float>() + place : nullptr,
             results.quantized ? results.quantized.template as<uint8_t>() + place : nullptr, quantization_});
        row += count;
      }
    });
  }

 private:
  Tensor weight_, bias_;
  float epsilon_;
  bool in_order_;
  Quantization quantization_;
};

void add_layer_norm(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
