// Implementation of GemmKernels over the traits `Vec` of an instruction set, in its namespace ISA.
//
// Sums of quantized inputs are exact integers, and sums of floats are added in the order of the depth. So no result
// depends on the grouping of rows.
#include <algorithm>
#include <cstdint>

#include "isa/gemm.h"
#include "isa/gemm_panel.h"
#include "isa/overflow_groups_impl.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

template <typename Kind, int kRows, int kShares>
void multiply_rows(const Panel<Kind>& panel, const Tile<Kind>& tile, const char* ahead) {
  Sums<Kind, kRows> sums;
  for_each<kRows * kPanelVectors>([&](auto number) __attribute__((always_inline)) {
    constexpr int kRow = number / kPanelVectors, kVector = number % kPanelVectors;
    sums[kRow][kVector] = panel.epilogue.first(kVector);
  });
  if constexpr (Kind::kInGroups)
    add_products_in_groups<Kind, kRows, kShares>(panel, tile, ahead, sums);
  else
    add_products<Kind, kRows, kShares>(panel, tile, ahead, sums);
  panel.epilogue.template write<kRows>(sums, tile.first);
}

constexpr int64_t kPrefetchDistance = 4096;  // bytes

// With few rows, the products take less time than loading the weights. So weights are prefetched: just ahead of the
// only tile, or those of the next panel in shares by the first tiles.
template <typename Kind, int kRows = Kind::kMaxRows>
void multiply_tile(const Panel<Kind>& panel, const Tile<Kind>& tile) {
  if constexpr (kRows > 1)
    if (tile.rows < kRows) return multiply_tile<Kind, kRows - 1>(panel, tile);
  const char* next = panel.first() + panel.bytes();
  if (panel.tiles == 1) return multiply_rows<Kind, kRows, 1>(panel, tile, panel.first() + kPrefetchDistance);
  if (panel.tiles < 4) {
    if (tile.number < 2) return multiply_rows<Kind, kRows, 2>(panel, tile, next + tile.number * panel.bytes() / 2);
  } else if (tile.number < 4) {
    return multiply_rows<Kind, kRows, 4>(panel, tile, next + tile.number * panel.bytes() / 4);
  }
  multiply_rows<Kind, kRows, 0>(panel, tile, nullptr);
}

// Depth padded to whole chunks.
int64_t padded_depth(int64_t depth) {
  constexpr int64_t kSide = kChunk<Uint8Inputs<Vec>>;
  return (depth + kSide - 1) / kSide * kSide;
}

template <typename Kind>
void multiply(const PanelGemm<typename Kind::Number>& product, const typename Kind::Element* numbers, int64_t stride) {
  const int64_t tiles = (product.rows + Kind::kMaxRows - 1) / Kind::kMaxRows;
  const Epilogue<Kind> epilogue(product);
  const Panel<Kind> panel{product.weights,         stride / kChunk<Kind>, tiles,
                          product.overflow_groups, product.depth_offsets, epilogue};
  for (int64_t number = 0; number < tiles; ++number) {
    const int64_t first = number * product.rows / tiles, rows = (number + 1) * product.rows / tiles - first;
    multiply_tile<Kind>(panel, {number, first, rows, numbers + first * stride, stride});
  }
}

void multiply_floats(const PanelGemm<float>& product) { multiply<FloatInputs>(product, product.inputs, product.depth); }

template <typename V>
void multiply_uint8(const PanelGemm<uint8_t>& product) {
  const int64_t stride = padded_depth(product.depth);
  if constexpr (!V::kOverflowGroups)
    multiply<Uint8Inputs<V>>(product, product.inputs, stride);
  else if (product.overflow_groups.chunks() == 0)
    multiply<Int16Inputs<V>>(product, product.inputs_int16, stride);
  else
    multiply<GroupedInputs<V>>(product, product.inputs, stride);
}

// Copies inputs to rows that are padded to whole chunks, and takes kLess from each.
template <int kLess, typename To>
To* padded(const uint8_t* inputs, int64_t rows, int64_t depth, To* to) {
  const int64_t stride = padded_depth(depth);
  for (int64_t row = 0; row < rows; ++row) {
    To* end = std::transform(inputs + row * depth, inputs + (row + 1) * depth, to + row * stride,
                             [](uint8_t input) { return static_cast<To>(input - kLess); });
    std::fill(end, to + (row + 1) * stride, To{0});
  }
  return to;
}

constexpr bool kCopiesInputs = Vec::kOverflowGroups || Vec::kSignedInputs;

PreparedInputs prepare(const uint8_t* inputs, int64_t rows, int64_t depth, bool as_int16) {
  const bool copy = Vec::kSignedInputs || padded_depth(depth) != depth;
  const size_t count = static_cast<size_t>(rows * padded_depth(depth));
  const size_t bytes = as_int16 ? count * sizeof(int16_t) : 0;
  if (bytes == 0 && !copy) return {inputs, nullptr};
  auto* room = static_cast<uint8_t*>(scratch(bytes + (copy ? count : 0)));
  return {copy ? padded<kInputOffset>(inputs, rows, depth, room + bytes) : inputs,
          as_int16 ? padded<0>(inputs, rows, depth, reinterpret_cast<int16_t*>(room)) : nullptr};
}

}  // namespace

extern const GemmKernels kGemmKernels;
const GemmKernels kGemmKernels = {kPanelColumns, kChunk<Uint8Inputs<Vec>>, Vec::kOverflowGroups, kCopiesInputs,
                                  prepare,       multiply_uint8<Vec>,      multiply_floats};

}  // namespace ISA
}  // namespace jumok
