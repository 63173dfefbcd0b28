// `Products` in vectors; compiled once for each instruction set, which defines LANES and VECTORS, the name of it all.
//
// Sums are whole numbers and exact, so they do not depend on how rows are grouped or on the instruction set.
#include <algorithm>
#include <vector>

#include "products.h"
#include "vectors.h"

namespace jumok {
namespace VECTORS {
namespace {

#if LANES == 16
using Factors = __m512i;  // 4 bytes of each lane
using Level = uint8_t;
constexpr int kPanelVectors = 4;

inline Factors weights_at(const int8_t* from) { return _mm512_loadu_si512(from); }
inline Factors in_all_lanes(int32_t levels) { return _mm512_set1_epi32(levels); }
inline Ints add_products(Ints sum, Factors levels, Factors weights) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, levels, weights);
}
#else
using Factors = __m256i;  // 2 numbers of 16 bits of each lane, whose products cannot overflow as those of bytes would
using Level = int16_t;
constexpr int kPanelVectors = 2;

inline Factors weights_at(const int8_t* from) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Factors in_all_lanes(int32_t levels) { return _mm256_set1_epi32(levels); }
inline Ints add_products(Ints sum, Factors levels, Factors weights) {
  return sum + (Ints)_mm256_madd_epi16(levels, weights);
}
#endif

constexpr int64_t kGroup = 4 / sizeof(Level);
constexpr int64_t kGroupBytes = kGroup * kLanes;  // of a vector's weights
constexpr int64_t kPanelColumns = kPanelVectors * kLanes;
constexpr int64_t kLine = 64, kAhead = 4096;  // bytes
constexpr int kMostRows = 6;  // whose sums stay in registers

inline Floats silu(Floats x) {
  const Floats small = exponential(x < 0.0f ? x : -x);  // e^-|x|
  return x * (x < 0.0f ? small : all(1.0f)) / (small + 1.0f);
}

// x times the normal distribution's share below x; its error function is formula 7.1.26 of Abramowitz and Stegun.
inline Floats gelu(Floats x) {
  const Floats distance = (x < 0.0f ? -x : x) * 0.70710678f;
  const Floats t = 1.0f / (distance * 0.3275911f + 1.0f);
  Floats tail = t * 1.061405429f - 1.453152027f;
  tail = tail * t + 1.421413741f;
  tail = tail * t - 0.284496736f;
  tail = tail * t + 0.254829592f;
  tail *= t * exponential(-distance * distance) * 0.5f;
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

// What becomes of the sums of one row.
class Finish {
 public:
  explicit Finish(const PanelProduct& product) : product_(product), rounding_(product.rounding) {
    for (int64_t i = 0; i < product.columns; ++i) {
      offsets_[i] = product.sums[i] * product.zero_point;
      scales_[i] = product.scales[i] * product.scale;
      if (product.bias != nullptr) bias_[i] = product.bias[i];
    }
  }

  void write(const Ints (&sums)[kPanelVectors], int64_t row) const {
    float made[kPanelColumns];
    uint8_t levels[kPanelColumns];
    const bool whole = product_.columns == kPanelColumns;
    float* out = whole && product_.out != nullptr ? product_.out + row * product_.stride : made;
    uint8_t* rounded = whole && product_.out == nullptr ? product_.rounded + row * product_.stride : levels;
    for (int i = 0; i < kPanelVectors; ++i) {
      Ints offset;
      std::memcpy(&offset, offsets_ + i * kLanes, sizeof offset);
      Floats x = __builtin_convertvector(sums[i] - offset, Floats);
      x = x * load(scales_ + i * kLanes) + load(bias_ + i * kLanes);
      if (product_.activation == Activation::kSilu) x = silu(x);
      if (product_.activation == Activation::kGelu) x = gelu(x);
      if (product_.out != nullptr)
        store(x, out + i * kLanes);
      else
        rounding_.store(x, rounded + i * kLanes);
    }
    if (whole) return;
    if (product_.out != nullptr)
      std::copy(made, made + product_.columns, product_.out + row * product_.stride);
    else
      std::copy(levels, levels + product_.columns, product_.rounded + row * product_.stride);
  }

 private:
  const PanelProduct product_;
  const Rounding rounding_;
  int32_t offsets_[kPanelColumns] = {};
  float scales_[kPanelColumns] = {}, bias_[kPanelColumns] = {};
};

struct Panel {
  const int8_t* weights;
  int64_t groups, tiles;
  const Finish& finish;

  int64_t bytes() const { return groups * kPanelVectors * kGroupBytes; }
};

// Rows whose sums are made at once.
struct Tile {
  int64_t number, first, rows;
  const Level* levels;  // [rows, stride]
  int64_t stride;
};

// With every group of weights, `kAsked` lines are asked of memory from `ahead` on.
template <int kRows, int kAsked>
void multiply_rows(const Panel& panel, const Tile& tile, const int8_t* ahead) {
  Ints sums[kRows][kPanelVectors] = {};
  const Level* levels = tile.levels;
  const int64_t stride = tile.stride, groups = panel.groups;
  for (int64_t group = 0; group < groups; ++group) {
    for (int line = 0; line < kAsked; ++line) __builtin_prefetch(ahead + kLine * (group * kAsked + line));
    const int8_t* from = panel.weights + group * kPanelVectors * kGroupBytes;
    Factors factors[kPanelVectors];
    for (int i = 0; i < kPanelVectors; ++i) factors[i] = weights_at(from + i * kGroupBytes);
    for (int row = 0; row < kRows; ++row) {
      int32_t some;
      std::memcpy(&some, levels + row * stride + group * kGroup, sizeof some);
      const Factors same = in_all_lanes(some);
      for (int i = 0; i < kPanelVectors; ++i) sums[row][i] = add_products(sums[row][i], same, factors[i]);
    }
  }
  for (int row = 0; row < kRows; ++row) panel.finish.write(sums[row], tile.first + row);
}

// Few sums are made sooner than memory gives their weights. So these are asked for early: just ahead of the only tile,
// or for the next panel, of which every one of the first tiles asks for a part.
template <int kRows = kMostRows>
void multiply_tile(const Panel& panel, const Tile& tile) {
  constexpr int64_t kLines = std::max(kPanelVectors * kGroupBytes / kLine, int64_t{1});  // of a group
  if constexpr (kRows > 1)
    if (tile.rows < kRows) return multiply_tile<kRows - 1>(panel, tile);
  if constexpr (kLines > 1) {
    const int8_t* next = panel.weights + panel.bytes();
    if (panel.tiles == 1) return multiply_rows<kRows, kLines>(panel, tile, panel.weights + kAhead);
    if (panel.tiles < kLines)
      return multiply_rows<kRows, kLines / 2>(panel, tile, next + tile.number * panel.bytes() / 2);
    if (tile.number < kLines) return multiply_rows<kRows, 1>(panel, tile, next + tile.number * panel.bytes() / kLines);
  }
  multiply_rows<kRows, 0>(panel, tile, nullptr);
}

void multiply(const PanelProduct& product) {
  const int64_t groups = (product.depth + kGroup - 1) / kGroup, padded_depth = groups * kGroup;
  const int64_t tiles = (product.rows + kMostRows - 1) / kMostRows;
  const Finish finish(product);
  const Panel panel{product.weights, groups, tiles, finish};
  for (int64_t number = 0; number < tiles; ++number) {
    const int64_t first = number * product.rows / tiles, rows = (number + 1) * product.rows / tiles - first;
    const uint8_t* given = product.levels + first * product.depth;
    if (sizeof(Level) == sizeof(uint8_t) && padded_depth == product.depth) {
      multiply_tile(panel, {number, first, rows, reinterpret_cast<const Level*>(given), padded_depth});
      continue;
    }
    static thread_local std::vector<Level> memory;
    memory.resize(static_cast<size_t>(kMostRows * padded_depth));
    for (int64_t row = 0; row < rows; ++row) {
      Level* to = memory.data() + row * padded_depth;
      std::fill(std::copy_n(given + row * product.depth, product.depth, to), to + padded_depth, Level{0});
    }
    multiply_tile(panel, {number, first, rows, memory.data(), padded_depth});
  }
}

}  // namespace

extern const Products kProducts;
const Products kProducts = {kPanelColumns, kGroup, multiply};

}  // namespace VECTORS
}  // namespace jumok
