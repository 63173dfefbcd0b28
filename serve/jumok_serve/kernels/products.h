// Products with weights that lie in panels: columns that are computed at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rows.h"
#include "sets.h"

namespace jumok {

enum class Activation : int64_t { kNone = 0, kSilu = 1, kGelu = 2, kRelu = 3 };

// What numbers are multiplied with: levels with weights of 8 bits, floats with floats.
template <typename Number>
using WeightOf = std::conditional_t<std::is_same_v<Number, float>, float, int8_t>;

// activation(numbers . weights + bias) of some rows and one panel. Levels stand for scale * (level - zero_point), and
// weights of 8 bits for themselves times scales.
template <typename Number>
struct PanelProduct {
  int64_t rows, depth;
  const Number* numbers;    // [rows, depth]; levels as `Products::prepared` gives them
  const int16_t* words;     // and so; read where no groups are in sets
  int32_t zero_point;
  float scale;
  const WeightOf<Number>* weights;  // a panel of PackedWeights
  Sets sets;                // of its groups, where products take sets; and in this order
  const int32_t* places;    // [groups], where in a row the levels of each begin
  const int32_t* sums;    // [columns], of the weights over the depth
  const float* scales;    // [columns]
  const float* bias;      // [columns], or null
  int64_t columns;        // that there are, at most a panel's
  Activation activation;
  float* out;             // [rows, columns], rows `stride` apart; or null:
  uint8_t* rounded;       // the same in levels
  int64_t stride;
  Levels rounding;
};

// Levels as products take them: rows end with zeros that make up the last group. Some of it may lie in `scratch`.
struct Prepared {
  const uint8_t* levels;
  const int16_t* words;  // the same, if they are wanted
};

// The functions and the order of weights of one instruction set.
struct Products {
  int64_t columns;  // of a panel
  int64_t group;    // how many of a column's weights of 8 bits lie side by side
  bool sets;        // whether groups of these are in sets
  Prepared (*prepared)(const uint8_t* levels, int64_t rows, int64_t depth, bool words);
  void (*multiply)(const PanelProduct<uint8_t>&);
  void (*multiply_floats)(const PanelProduct<float>&);
};

// Memory of this thread, which the next call takes again. It is not in the functions of one instruction set: what they
// have in common with others may be linked from any of them.
void* scratch(size_t bytes);

// Those for this processor, which has what `rows()` needs.
const Products& products();

}  // namespace jumok
