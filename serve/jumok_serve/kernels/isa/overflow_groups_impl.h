// Products of int8 weights in overflow groups, for instruction sets that sum products in int16.
#pragma once

#include <cstdint>

#include "isa/gemm.h"
#include "isa/gemm_panel.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

// Two quantized inputs a lane, as int16.
template <typename V>
struct Int16Inputs {
  using Number = uint8_t;
  using Element = int16_t;
  using Factors = typename V::Bytes;
  using Sum = Ints;
  static constexpr int kMaxRows = 6;
  static constexpr bool kInGroups = false;

  static Factors weights_at(const int8_t* from) { return V::widened(from); }
  static Factors broadcast(const Element* from) { return V::four_bytes(from); }
  static Sum add(Sum sum, Factors inputs, Factors weights) { return V::dot_of_two(sum, inputs, weights); }
};

// Four quantized inputs a lane. An overflow group sums the int16 products of its chunks before they are widened to
// int32. Chunks outside of groups are widened to int16 first, two inputs at a time.
template <typename V>
struct GroupedInputs {
  using Number = uint8_t;
  using Element = uint8_t;
  using Factors = typename V::Bytes;
  using Sum = Ints;
  static constexpr int kMaxRows = 4;
  static constexpr bool kInGroups = true;

  static Factors weights_at(const int8_t* from) { return V::load_bytes(from); }
  static Factors broadcast(const Element* from) { return V::four_bytes(from); }
  template <int kChunks>
  static Sum add(Sum sum, const Factors (&inputs)[kChunks], const Factors (&weights)[kChunks]) {
    Factors pairs = V::paired_products(inputs[0], weights[0]);
    for_each<kChunks - 1>([&](auto i) __attribute__((always_inline)) {
      pairs = V::added_pairs(pairs, V::paired_products(inputs[i + 1], weights[i + 1]));
    });
    return V::add_pairs(sum, pairs);
  }

  static Factors two_weights_at(const int8_t* from) { return V::widened(from); }
  static Factors two_inputs(Factors four, int half) { return V::two_inputs(four, half); }
  static Sum add_two(Sum sum, Factors inputs, Factors weights) { return V::dot_of_two(sum, inputs, weights); }
};

// Adds the chunks from `first` to `last`, which are in overflow groups of kSize.
template <typename Kind, int kSize, int kRows, int kShares>
[[gnu::always_inline]] inline void add_groups(const Panel<Kind>& panel, const uint8_t* const (&numbers)[kRows],
                                              const char* ahead, int64_t first, int64_t last, Sums<Kind, kRows>& sums) {
  constexpr int64_t kVector = Panel<Kind>::kVector;
  for (int64_t chunk = first; chunk < last; chunk += kSize) {
    int64_t at[kSize];
    typename Kind::Factors weights[kPanelVectors][kSize];
    for_each<kSize>([&](auto i) __attribute__((always_inline)) {
      at[i] = panel.depth_offsets[chunk + i];
      if constexpr (kShares < 4 || i % 2 == 0) prefetch_share<Kind, kShares>(ahead, chunk + i);
      for_each<kPanelVectors>([&](auto vector) __attribute__((always_inline)) {
        weights[vector][i] = Kind::weights_at(panel.weights + ((chunk + i) * kPanelVectors + vector) * kVector);
      });
    });
    for_each<kRows>([&](auto row) __attribute__((always_inline)) {
      typename Kind::Factors inputs[kSize];
      for_each<kSize>([&](auto i)
                          __attribute__((always_inline)) { inputs[i] = Kind::broadcast(numbers[row] + at[i]); });
      for_each<kPanelVectors>([&](auto vector) __attribute__((always_inline)) {
        sums[row][vector] = Kind::add(sums[row][vector], inputs, weights[vector]);
      });
    });
  }
}

// Adds chunks in overflow groups, then the two halves of each other chunk.
template <typename Kind, int kRows, int kShares>
[[gnu::always_inline]] inline void add_products_in_groups(const Panel<Kind>& panel, const Tile<Kind>& tile,
                                                          const char* ahead, Sums<Kind, kRows>& sums) {
  constexpr int64_t kVector = Panel<Kind>::kVector, kHalf = kPanelVectors * kVector / 2;
  const uint8_t* numbers[kRows];
  for (int row = 0; row < kRows; ++row) numbers[row] = tile.numbers + row * tile.stride;
  const int64_t in_groups = panel.overflow_groups.chunks();
  add_groups<Kind, 3, kRows, kShares>(panel, numbers, ahead, 0, panel.overflow_groups.in_triples, sums);
  add_groups<Kind, 2, kRows, kShares>(panel, numbers, ahead, panel.overflow_groups.in_triples, in_groups, sums);
  for (int64_t chunk = in_groups; chunk < panel.chunks; ++chunk) {
    const int8_t* from = panel.weights + chunk * 2 * kHalf;
    const int64_t at = panel.depth_offsets[chunk];
    prefetch_share<Kind, kShares>(ahead, chunk);
    for (int half = 0; half < 2; ++half) {
      typename Kind::Factors weights[kPanelVectors];
      for_each<kPanelVectors>([&](auto i) __attribute__((always_inline)) {
        weights[i] = Kind::two_weights_at(from + half * kHalf + i * kVector / 2);
      });
      for_each<kRows>([&](auto row) __attribute__((always_inline)) {
        const typename Kind::Factors inputs = Kind::two_inputs(Kind::broadcast(numbers[row] + at), half);
        for_each<kPanelVectors>([&](auto i) __attribute__((always_inline)) {
          sums[row][i] = Kind::add_two(sums[row][i], inputs, weights[i]);
        });
      });
    }
  }
}

}  // namespace
}  // namespace ISA
}  // namespace jumok
