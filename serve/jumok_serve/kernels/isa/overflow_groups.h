// Overflow groups: two or three chunks of int8 weights whose products are summed in int16 without overflow.
#pragma once

#include <cstdint>

namespace jumok {

// Numbers of a panel's chunks in triples and in pairs. These chunks come first, in this order.
struct OverflowGroups {
  int64_t in_triples, in_pairs;

  int64_t chunks() const { return in_triples + in_pairs; }
  bool operator==(const OverflowGroups& other) const {
    return in_triples == other.in_triples && in_pairs == other.in_pairs;
  }
};

// Orders the chunks of a panel, [chunks, columns, 4]: those in groups first, then others, split into halves, [2,
// columns, 2]. If few chunks fit into groups, there are none. Writes the depth of each chunk to `depth_offsets`.
//
// An int16 lane holds the products of two neighboring weights of each chunk. They cannot overflow if the positive
// weights of a group add up to at most 128, and so do the negative ones: 128 * 255 < 2^15.
OverflowGroups form_overflow_groups(int8_t* panel, int64_t chunks, int64_t columns, int32_t* depth_offsets);

}  // namespace jumok
