// Groups of weights in 8 bits whose products with levels are summed in 16 bits, two groups at a time.
#pragma once

#include <cstdint>

namespace jumok {

// Orders the groups of a panel, [groups, columns, 4]: first those in pairs, each beside its own, then others, which
// become two halves, [2, columns, 2]. Returns how many are in pairs, 0 if few could be; `places` gets at what
// depth each was.
//
// In a lane of 16 bits lie the products of two neighbours of each group. There is room for them, whatever the levels, if
// neither the positive nor the negative ones of these four weights make more than 128: 128 * 255 < 2^15.
int64_t pair_groups(int8_t* panel, int64_t groups, int64_t columns, int32_t* places);

}  // namespace jumok
