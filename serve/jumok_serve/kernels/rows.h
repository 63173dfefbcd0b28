// What is computed for one row of a tensor, with the widest vectors of the processor.
#pragma once

#include <cstdint>
#include <type_traits>

namespace jumok {

using Half = uint16_t;  // bits of an IEEE 754 binary16
using Int8 = int8_t;    // a level of a key or value, behind all of whose levels their scale lies, a float

// How many elements lie between keys or values of so many numbers that lie side by side.
template <typename Element>
constexpr int64_t stride_of(int64_t width) {
  return width + (std::is_same_v<Element, Int8> ? int64_t{sizeof(float)} : 0);
}

// How QuantizeLinear makes levels of numbers; none where `scale` is 0.
struct Levels {
  float scale = 0;
  int32_t zero_point = 0;
};

// Softmax(scale * queries . keys + mask + bias) . values, for rows of one head that have keys and values in common, or
// for heads of one row, each of which counts as a row and has its own.
template <typename Element>
struct Attention {
  int64_t rows, width, entries;
  const float* queries;  // [rows, width], `stride` floats apart
  int64_t stride;
  const Element* keys;   // [entries, width], `entry_stride` apart
  const Element* values;
  int64_t entry_stride;
  int64_t row_stride;    // from one row's keys and values to the next one's, or 0 where they have them in common
  const int32_t* seen;   // [count], the entries that any row sees; null: the first ones
  int64_t count;
  const float* mask;     // [rows, padded(count)], 0 where a row sees an entry, and -infinity elsewhere and behind them
  int64_t mask_stride;   // from one row's to the next, which may be 0
  const float* bias;     // [rows, entries], or null
  int64_t bias_stride;
  float scale;
  float* weights;        // room for kRoomOfEntry * padded(count)
  float* out;            // [rows, width], `out_stride` floats apart; 0 for a row that sees nothing
  int64_t out_stride;
  bool any_number;       // whether a row is to be the same among any number of others, as of a source that is padded
};

// sum = x + y, norm = (sum - mean) / sqrt(variance + epsilon) * weight + bias of some rows, and levels of the norm.
struct AddNorm {
  int64_t rows, width;
  const float* x;  // [rows, width], as are `y` and the results
  const float* y;
  const float* weight;  // [width]
  const float* bias;
  float epsilon;
  float* sum;       // may be x or y
  float* norm;      // may be `sum`; null where nobody reads it
  uint8_t* levels;  // or null
  Levels rounding;
};

constexpr int64_t kRowsAtOnce = 4;
constexpr int64_t kRoomOfEntry = 13;  // of four rows a weight, the scales of key and value, and where the entry is

// Heads of a sentence with one row that are computed at once.
template <typename Element>
constexpr int64_t kHeadsAtOnce = std::is_same_v<Element, Int8> ? 4 : 2;

// Whole vectors of any instruction set.
constexpr int64_t padded(int64_t count) { return (count + 15) / 16 * 16; }

struct Best {
  float most;     // the largest
  float log_sum;  // of e^(x - most) over the row
};

// The functions that exist once for each instruction set.
struct Rows {
  void (*attend)(const Attention<float>&);
  void (*attend_half)(const Attention<Half>&);
  void (*attend_int8)(const Attention<Int8>&);
  void (*to_half)(const float* from, Half* to, int64_t count);
  // Levels of the numbers of heads, which lie side by side: the largest of each has the level 127 or -127, and behind
  // them is their scale, which is NaN if one of them is NaN or infinite. From head to head is `stride`.
  void (*to_int8)(const float* from, int64_t width, int64_t heads, Int8* to, int64_t stride);
  // Levels times a scale, and that times a factor.
  void (*from_int8)(const Int8* from, float scale, float factor, float* to, int64_t count);
  void (*quantize)(const float* from, uint8_t* to, int64_t count, Levels levels);
  void (*add_norm)(const AddNorm&);
  // Over `count` blocks of `kBlock` numbers, of each of which it writes the maximum. NaN makes log_sum NaN.
  Best (*log_sum)(const float* const* blocks, int64_t count, float* maxima);
};

constexpr int64_t kBlock = 64;

// The widest vectors of the processor that there are functions for; AVX-512 with VNNI.
enum class Vectors { kNone, kAvx2, kAvx512 };
Vectors widest();

// The functions for this processor; null if it is too old.
const Rows* rows();

}  // namespace jumok
