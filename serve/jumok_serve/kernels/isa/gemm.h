// Matrix products with packed weights: one call computes a panel of columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "isa/overflow_groups.h"
#include "isa/row.h"

namespace jumok {

enum class Activation : int64_t { kNone = 0, kSilu = 1, kGelu = 2, kRelu = 3 };

// Weights for inputs of a type: int8 for quantized ones (uint8), float for float.
template <typename Number>
using WeightOf = std::conditional_t<std::is_same_v<Number, float>, float, int8_t>;

// activation(inputs . weights * factors + bias) of some rows and the columns of one panel. A quantized input q means
// scale * (q - zero_point), and an int8 weight is multiplied by the scale of its column.
template <typename Number>
struct PanelGemm {
  int64_t rows, depth;
  const Number* inputs;         // [rows, depth]; quantized ones as prepared by GemmKernels::prepare
  const int16_t* inputs_int16;  // the same as int16, for panels without overflow groups
  int32_t zero_point;
  float scale;
  const WeightOf<Number>* weights;  // a panel of PackedWeights
  OverflowGroups overflow_groups;   // of the panel's chunks
  const int32_t* depth_offsets;     // [chunks], depth at which each chunk begins
  const int32_t* weight_sums;       // [columns], over the depth
  const float* scales;              // [columns]
  const float* factors;             // [rows], of products of quantized inputs; or null
  const float* bias;                // [columns], or null
  int64_t columns;                  // at most GemmKernels::columns
  Activation activation;
  float* out;              // [rows, columns], rows `stride` apart; or null and
  uint8_t* quantized_out;  // the quantized result instead
  int64_t stride;
  Quantization quantization;
};

// Quantized inputs whose rows are padded with zeros to whole chunks; may lie in `scratch`.
struct PreparedInputs {
  const uint8_t* uint8;
  const int16_t* int16;  // null unless requested
};

// Kernels and weight layout of one instruction set.
struct GemmKernels {
  int64_t columns;       // of a panel
  int64_t chunk;         // consecutive int8 weights of a column that share a lane
  bool overflow_groups;  // true if int8 chunks are summed in overflow groups
  bool copies_inputs;    // true if `prepare` copies inputs even of whole chunks
  PreparedInputs (*prepare)(const uint8_t* inputs, int64_t rows, int64_t depth, bool as_int16);
  void (*multiply)(const PanelGemm<uint8_t>&);
  void (*multiply_floats)(const PanelGemm<float>&);
};

// Memory of this thread, reused by the next call. Defined apart from the kernels: the linker could pick a copy of an
// inline function that was compiled for an instruction set that this processor lacks.
void* scratch(size_t bytes);

// Kernels of the chosen instruction set; only if `row_kernels` is not null.
const GemmKernels& gemm_kernels();

}  // namespace jumok
