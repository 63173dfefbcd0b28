// Groups of weights in 8 bits whose products with levels are summed in 16 bits, three or two groups at a time.
#pragma once

#include <cstdint>

namespace jumok {

// How many groups of a panel are in sets of three and of two. They come first, in this order, each beside its own.
struct Sets {
  int64_t in_threes, in_twos;

  int64_t groups() const { return in_threes + in_twos; }
  bool operator==(const Sets& other) const { return in_threes == other.in_threes && in_twos == other.in_twos; }
};

// Orders the groups of a panel, [groups, columns, 4]: first those in sets, then others, which become two halves,
// [2, columns, 2]. There are no sets if few groups could be in some; `places` gets at what depth each group was.
//
// In a lane of 16 bits lie the products of two neighbours of each group. There is room for them, whatever the levels, if
// neither the positive nor the negative ones of a set's weights there make more than 128: 128 * 255 < 2^15.
Sets form_sets(int8_t* panel, int64_t groups, int64_t columns, int32_t* places);

}  // namespace jumok
