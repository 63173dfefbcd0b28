// What is computed for one row of a tensor, with the widest vectors of the processor.
#pragma once

#include <cstdint>

namespace jumok {

using Half = uint16_t;  // bits of an IEEE 754 binary16

// How QuantizeLinear makes levels of numbers; none where `scale` is 0.
struct Levels {
  float scale = 0;
  int32_t zero_point = 0;
};

// Softmax(scale * query . keys + bias) . values over those entries that are seen.
template <typename Element>
struct Attention {
  int64_t width;         // of a head
  const float* query;    // [width]
  const Element* keys;   // [entries, width]
  const Element* values;
  const int32_t* seen;   // [count], entries; null: the first ones
  int64_t count;         // at least 1
  const float* bias;     // [entries], or null
  float scale;
  float* weights;        // room for `count`, rounded up to a multiple of 16
  float* out;            // [width]
};

struct Best {
  float most;     // the largest
  float log_sum;  // of e^(x - most) over the row
};

// The functions that exist once for each instruction set.
struct Rows {
  void (*attend)(const Attention<float>&);
  void (*attend_half)(const Attention<Half>&);
  void (*to_half)(const float* from, Half* to, int64_t count);
  void (*quantize)(const float* from, uint8_t* to, int64_t count, Levels levels);
  // sum = x + y, norm = (sum - mean) / sqrt(variance + epsilon) * weight + bias. `sum` may be x or y.
  void (*add_norm)(const float* x, const float* y, const float* weight, const float* bias, float epsilon, float* sum,
                   float* norm, int64_t count);
  // Also writes the maximum of every block of `kBlock` numbers, the last one possibly shorter. NaN makes log_sum NaN.
  Best (*log_sum)(const float* row, int64_t count, float* maxima);
};

constexpr int64_t kBlock = 64;

// Those for this processor; null if it is too old.
const Rows* rows();

}  // namespace jumok
