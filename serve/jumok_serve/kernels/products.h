// Products of levels with weights of 8 bits, which lie in panels: columns that are computed at once.
#pragma once

#include <cstdint>

#include "rows.h"

namespace jumok {

enum class Activation : int64_t { kNone = 0, kSilu = 1, kGelu = 2 };

// activation(scale * scales * (levels - zero_point) . weights + bias) of some rows and one panel.
struct PanelProduct {
  int64_t rows, depth;
  const uint8_t* levels;  // [rows, depth]
  int32_t zero_point;
  float scale;
  const int8_t* weights;  // a panel of PackedWeights
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

// The function and the order of weights of one instruction set.
struct Products {
  int64_t columns;  // of a panel
  int64_t group;    // how many of a column's weights lie side by side
  void (*multiply)(const PanelProduct&);
};

// Those for this processor, which has what `rows()` needs.
const Products& products();

}  // namespace jumok
