// Kernels of tensor rows: attention, layer normalization, quantization, log-sum-exp; one table an instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

namespace jumok {

using Half = uint16_t;  // bits of an IEEE 754 binary16
using Int8 = int8_t;    // a quantized key or value; the float scale of a head follows its quantized values

// Elements between neighboring keys or values of `width` numbers.
template <typename Element>
constexpr int64_t stride_of(int64_t width) {
  return width + (std::is_same_v<Element, Int8> ? int64_t{sizeof(float)} : 0);
}

// Scale and zero point of QuantizeLinear; scale 0: not quantized.
struct Quantization {
  float scale = 0;
  int32_t zero_point = 0;
};

// Softmax(scale * queries . keys + mask + bias) . values. The rows are either beams of one head, which share keys and
// values, or heads of one beam, which have their own.
template <typename Element>
struct Attention {
  int64_t rows, width, entries;
  const float* queries;  // [rows, width], `stride` floats apart
  int64_t stride;
  const Element* keys;  // [entries, width], `entry_stride` apart
  const Element* values;
  int64_t entry_stride;
  int64_t row_stride;              // between the keys of neighboring rows; 0: shared keys and values
  const int32_t* visible_entries;  // [count], entries visible to at least one row; null: 0 .. count-1
  int64_t count;
  const float* mask;    // [rows, padded(count)], 0 for visible entries, else -infinity
  int64_t mask_stride;  // between rows; may be 0
  const float* bias;    // [rows, entries], or null
  int64_t bias_stride;
  float scale;
  float* weights;  // workspace of kWorkspacePerEntry * padded(count) floats
  float* out;      // [rows, width], `out_stride` floats apart; 0 for a row without visible entries
  int64_t out_stride;
  bool row_count_invariant;  // true if a row's result must not depend on `rows`
};

// sum = x + y and norm = (sum - mean) / sqrt(variance + epsilon) * weight + bias of each row.
struct AddNorm {
  int64_t rows, width;
  const float* x;  // [rows, width], as y and the results
  const float* y;
  const float* weight;  // [width]
  const float* bias;
  float epsilon;
  bool in_order;       // sums are added in order, and nothing is fused or multiplied by a reciprocal, as in Marian
  float* sum;          // may be x or y
  float* norm;         // may be `sum`; null: not needed
  uint8_t* quantized;  // the quantized norm; null: not needed
  Quantization quantization;
};

// A simpler simple recurrent unit, for one row: next = f * cell + (1 - f) * candidate with f = sigmoid(forget), and
// output = relu(next).
struct SsruRow {
  int64_t width;
  const float* forget;
  const float* candidate;
  const float* cell;
  float* next;  // may be candidate or cell
  float* output;
};

constexpr int64_t kRowsPerBlock = 4;

// Floats of workspace for an entry: for each of four rows a weight and the scales of key and value, and its offset.
constexpr int64_t kWorkspacePerEntry = 13;

// Heads of a sentence with one beam that are computed in one call.
template <typename Element>
constexpr int64_t kHeadsPerCall = std::is_same_v<Element, Int8> ? 4 : 2;

// Rounds up to whole vectors of any instruction set.
constexpr int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }

struct LogSumExp {
  float max;
  float log_sum;  // of e^(x - max)
};

// Kernels of one instruction set.
struct RowKernels {
  void (*attend)(const Attention<float>&);
  void (*attend_half)(const Attention<Half>&);
  void (*attend_int8)(const Attention<Int8>&);
  void (*to_half)(const float* from, Half* to, int64_t count);
  // Quantizes contiguous heads to -127 .. 127, each with the scale of its largest magnitude, which follows the values.
  // The scale is NaN if a number is NaN or infinite. `stride` is from head to head in `to`.
  void (*to_int8)(const float* from, int64_t width, int64_t heads, Int8* to, int64_t stride);
  // from * scale * factor
  void (*from_int8)(const Int8* from, float scale, float factor, float* to, int64_t count);
  void (*quantize)(const float* from, uint8_t* to, int64_t count, Quantization quantization);
  // Quantizes a row that is divided by its largest magnitude, or by that of its rectified numbers. Returns the
  // magnitude, which is NaN if a number is. It divides, as QuantizeLinear does.
  float (*quantize_row)(const float* from, int64_t width, bool rectified, uint8_t* to, Quantization quantization);
  void (*add_norm)(const AddNorm&);
  void (*advance_ssru)(const SsruRow&);
  // Log-sum-exp of `count` blocks of kBlock numbers; writes the maximum of each block. NaN makes log_sum NaN.
  LogSumExp (*log_sum_exp)(const float* const* blocks, int64_t count, float* maxima);
};

constexpr int64_t kBlock = 64;

// Kernels of the chosen instruction set; null if there is none.
const RowKernels* row_kernels();

}  // namespace jumok
