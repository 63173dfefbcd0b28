// Panels of packed weights, tiles of rows, and the sums of their products.
#pragma once

#include <algorithm>
#include <cstdint>

#include "isa/gemm.h"
#include "isa/gemm_epilogue.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

// Four quantized inputs a lane.
template <typename V>
struct Uint8Inputs {
  using Number = uint8_t;
  using Element = uint8_t;
  using Factors = typename V::Bytes;
  using Sum = Ints;
  static constexpr int kMaxRows = 6;
  static constexpr bool kInGroups = false;

  static Factors weights_at(const int8_t* from) { return V::load_bytes(from); }
  static Factors broadcast(const Element* from) { return V::four_bytes(from); }
  static Sum add(Sum sum, Factors inputs, Factors weights) { return V::dot(sum, inputs, weights); }
};

struct FloatInputs {
  using Number = float;
  using Element = float;
  using Factors = Floats;
  using Sum = Floats;
  static constexpr int kMaxRows = 6;
  static constexpr bool kInGroups = false;

  static Factors weights_at(const float* from) { return load(from); }
  static Factors broadcast(const Element* from) { return all(*from); }
  static Sum add(Sum sum, Factors numbers, Factors weights) { return Vec::add_product(sum, numbers, weights); }
};

// Consecutive weights of a column in a lane.
template <typename Kind>
constexpr int64_t kChunk = 4 / sizeof(typename Kind::Element);

constexpr int64_t kLine = 64;  // bytes of a cache line

template <typename Kind>
struct Panel {
  using Weight = WeightOf<typename Kind::Number>;
  static constexpr int64_t kVector = kChunk<Kind> * kLanes, kChunkBytes = kPanelVectors * kVector * sizeof(Weight);

  const Weight* weights;
  int64_t chunks, tiles;
  OverflowGroups overflow_groups;  // of chunks of quantized inputs
  const int32_t* depth_offsets;    // [chunks]
  const Epilogue<Kind>& epilogue;

  const char* first() const { return reinterpret_cast<const char*>(weights); }
  int64_t bytes() const { return chunks * kChunkBytes; }
};

// Rows whose sums are kept in registers together.
template <typename Kind>
struct Tile {
  int64_t number, first, rows;
  const typename Kind::Element* numbers;  // [rows, stride]
  int64_t stride;
};

// Bytes of one prefetch: a cache line, or a smaller chunk, whose line is then prefetched repeatedly.
template <typename Kind>
constexpr int64_t kPrefetchBytes = std::min(kLine, Panel<Kind>::kChunkBytes);

template <typename Kind, int kRows>
using Sums = typename Epilogue<Kind>::template Sums<kRows>;

// Prefetches a tile's share of later weights, from `ahead` on, with each chunk: 1 / kShares of them, or none if kShares
// is 0.
template <typename Kind, int kShares>
[[gnu::always_inline]] inline void prefetch_share(const char* ahead, int64_t chunk) {
  constexpr int64_t kLines = Panel<Kind>::kChunkBytes / kPrefetchBytes<Kind>;  // of a chunk
  if constexpr (kShares > kLines) {
    __builtin_prefetch(ahead + kPrefetchBytes<Kind> * (chunk / (kShares / kLines)));
  } else if constexpr (kShares > 0) {
    constexpr int64_t kPrefetched = kLines / kShares;
    for (int64_t line = 0; line < kPrefetched; ++line)
      __builtin_prefetch(ahead + kPrefetchBytes<Kind> * (chunk * kPrefetched + line));
  }
}

template <typename Kind, int kRows, int kShares>
[[gnu::always_inline]] inline void add_products(const Panel<Kind>& panel, const Tile<Kind>& tile, const char* ahead,
                                                Sums<Kind, kRows>& sums) {
  for (int64_t chunk = 0; chunk < panel.chunks; ++chunk) {
    prefetch_share<Kind, kShares>(ahead, chunk);
    const auto* from = panel.weights + chunk * kPanelVectors * Panel<Kind>::kVector;
    typename Kind::Factors factors[kPanelVectors];
    for (int i = 0; i < kPanelVectors; ++i) factors[i] = Kind::weights_at(from + i * Panel<Kind>::kVector);
    for_each<kRows>([&](auto row) __attribute__((always_inline)) {
      const typename Kind::Factors same = Kind::broadcast(tile.numbers + row * tile.stride + chunk * kChunk<Kind>);
      for_each<kPanelVectors>(
          [&](auto i) __attribute__((always_inline)) { sums[row][i] = Kind::add(sums[row][i], same, factors[i]); });
    });
  }
}

}  // namespace
}  // namespace ISA
}  // namespace jumok
