// `Products` in vectors; compiled once for each instruction set, which defines LANES and VECTORS, the name of it all.
//
// Sums of levels are whole numbers and exact, and those of floats are taken in the order of the depth, so none depends
// on how rows are grouped.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "products.h"
#include "vectors.h"

namespace jumok {
namespace VECTORS {
namespace {

inline int32_t four_bytes_at(const void* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

#if LANES == 16
constexpr int kPanelVectors = 4;

struct OfLevels {
  using Number = uint8_t;
  using Element = uint8_t;
  using Factors = __m512i;  // 4 bytes of each lane
  using Sum = Ints;
  static constexpr int kMostRows = 6;

  static Factors weights_at(const int8_t* from) { return _mm512_loadu_si512(from); }
  static Factors in_all_lanes(const Element* from) { return _mm512_set1_epi32(four_bytes_at(from)); }
  static Sum add(Sum sum, Factors levels, Factors weights) {
    return (Sum)_mm512_dpbusd_epi32((__m512i)sum, levels, weights);
  }
};
#else
constexpr int kPanelVectors = 2;

// 2 levels of each lane, as words.
struct OfWords {
  using Number = uint8_t;
  using Element = int16_t;
  using Factors = __m256i;
  using Sum = Ints;
  static constexpr int kMostRows = 6;

  static Factors weights_at(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Factors in_all_lanes(const Element* from) { return _mm256_set1_epi32(four_bytes_at(from)); }
  static Sum add(Sum sum, Factors levels, Factors weights) { return sum + (Sum)_mm256_madd_epi16(levels, weights); }
};

// 4 levels of each lane, in groups of which a set is added: two products in 16 bits, then the set's sums of these, then
// both sums of a lane. Of others two levels are made words at a time.
struct OfLevels {
  using Number = uint8_t;
  using Element = uint8_t;
  using Factors = __m256i;
  using Sum = Ints;
  static constexpr int kMostRows = 4;

  static Factors weights_at(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static Factors in_all_lanes(const Element* from) { return _mm256_set1_epi32(four_bytes_at(from)); }
  static Factors words_of(Factors same, int half) {  // of 4 levels that are in all lanes, the first or the last two
    return _mm256_shuffle_epi8(same, _mm256_set1_epi32(half == 0 ? 0x80018000 : 0x80038002));
  }
  template <int kGroups>
  static Sum add(Sum sum, const Factors (&levels)[kGroups], const Factors (&weights)[kGroups]) {
    Factors words = _mm256_maddubs_epi16(levels[0], weights[0]);
    for_each<kGroups - 1>([&](auto i) __attribute__((always_inline)) {
      words = _mm256_add_epi16(words, _mm256_maddubs_epi16(levels[i + 1], weights[i + 1]));
    });
    return sum + (Sum)_mm256_madd_epi16(words, _mm256_set1_epi16(1));
  }
};
#endif

struct OfFloats {
  using Number = float;
  using Element = float;
  using Factors = Floats;
  using Sum = Floats;
  static constexpr int kMostRows = 6;

  static Factors weights_at(const float* from) { return load(from); }
#if LANES == 16
  static Factors in_all_lanes(const Element* from) { return (Factors)_mm512_set1_ps(*from); }
  static Sum add(Sum sum, Factors numbers, Factors weights) {
    return (Sum)_mm512_fmadd_ps((__m512)numbers, (__m512)weights, (__m512)sum);
  }
#else
  static Factors in_all_lanes(const Element* from) { return (Factors)_mm256_set1_ps(*from); }
  static Sum add(Sum sum, Factors numbers, Factors weights) {
    return (Sum)_mm256_fmadd_ps((__m256)numbers, (__m256)weights, (__m256)sum);
  }
#endif
};

// How many of a column's weights are multiplied in a lane.
template <typename Kind>
constexpr int64_t kGroup = 4 / sizeof(typename Kind::Element);

constexpr int64_t kPanelColumns = kPanelVectors * kLanes;
constexpr int64_t kLine = 64, kAhead = 4096;  // bytes
constexpr bool kSets = LANES == 8;            // of groups of levels

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

// What becomes of sums.
template <typename Kind>
class Finish {
 public:
  using Sum = typename Kind::Sum;
  template <int kRows>
  using Sums = Sum[kRows][kPanelVectors];

  explicit Finish(const PanelProduct<typename Kind::Number>& product)
      : product_(product),
        rounding_(product.rounding),
        least_(all(product.activation == Activation::kRelu ? 0.0f : -INFINITY)),
        curved_(product.activation == Activation::kSilu || product.activation == Activation::kGelu) {
    for (int64_t i = 0; i < product.columns; ++i) {
      if constexpr (kOfLevels) {
        offsets_[i] = -product.sums[i] * product.zero_point;
        scales_[i] = product.scales[i] * product.scale;
      }
      if (product.bias != nullptr) bias_[i] = product.bias[i];
    }
  }

  // What the sums of columns begin with.
  Sum first(int vector) const {
    Sum sum = {};
    if constexpr (kOfLevels) std::memcpy(&sum, offsets_ + vector * kLanes, sizeof sum);
    return sum;
  }

  template <int kRows>
  [[gnu::always_inline]] void write(const Sums<kRows>& sums, int64_t row) const {
    const int64_t stride = product_.stride;
    if (curved_ || product_.columns < kPanelColumns) {
      float made[kRows * kPanelColumns];
      store_all<kRows>(sums, made, kPanelColumns, [](Floats x, float* to) { store(x, to); });
      write_slowly(made, kRows, row);
    } else if (product_.out != nullptr) {
      store_all<kRows>(sums, product_.out + row * stride, stride, [](Floats x, float* to) { store(x, to); });
    } else {
      store_all<kRows>(sums, product_.rounded + row * stride, stride,
                       [this](Floats x, uint8_t* to) { rounding_.store(x, to); });
    }
  }

 private:
  static constexpr bool kOfLevels = std::is_same_v<typename Kind::Number, uint8_t>;

  template <int kRows, typename Result, typename Store>
  [[gnu::always_inline]] void store_all(const Sums<kRows>& sums, Result* to, int64_t stride, Store store_one) const {
    for_each<kRows * kPanelVectors>([&](auto number) __attribute__((always_inline)) {
      constexpr int kRow = number / kPanelVectors, kVector = number % kPanelVectors;
      store_one(finished(sums[kRow][kVector], kVector), to + kRow * stride + kVector * kLanes);
    });
  }

  Floats finished(Sum sum, int vector) const {
    Floats x;
    if constexpr (kOfLevels)
      x = __builtin_convertvector(sum, Floats) * load(scales_ + vector * kLanes) + load(bias_ + vector * kLanes);
    else
      x = sum + load(bias_ + vector * kLanes);
    return larger(least_, x);  // NaN stays
  }

  // With an activation that takes long anyway, or less columns than a panel has; once, and not for every kind of tile.
  [[gnu::noinline]] void write_slowly(const float* numbers, int64_t rows, int64_t first) const {
    for (int64_t row = 0; row < rows; ++row) {
      float made[kPanelColumns];
      uint8_t levels[kPanelColumns];
      for (int i = 0; i < kPanelVectors; ++i) {
        Floats x = load(numbers + row * kPanelColumns + i * kLanes);
        if (product_.activation == Activation::kSilu) x = silu(x);
        if (product_.activation == Activation::kGelu) x = gelu(x);
        store(x, made + i * kLanes);
        if (product_.out == nullptr) rounding_.store(x, levels + i * kLanes);
      }
      const int64_t at = (first + row) * product_.stride;
      if (product_.out != nullptr)
        std::copy(made, made + product_.columns, product_.out + at);
      else
        std::copy(levels, levels + product_.columns, product_.rounded + at);
    }
  }

  const PanelProduct<typename Kind::Number> product_;
  const Rounding rounding_;
  const Floats least_;
  const bool curved_;
  alignas(Floats) int32_t offsets_[kPanelColumns] = {};
  alignas(Floats) float scales_[kPanelColumns] = {}, bias_[kPanelColumns] = {};
};

template <typename Kind>
struct Panel {
  using Weight = WeightOf<typename Kind::Number>;
  static constexpr int64_t kVector = kGroup<Kind> * kLanes, kGroupBytes = kPanelVectors * kVector * sizeof(Weight);

  const Weight* weights;
  int64_t groups, tiles;
  Sets sets;             // of groups of levels,
  const int32_t* places;  // and where they are
  const Finish<Kind>& finish;

  const char* first() const { return reinterpret_cast<const char*>(weights); }
  int64_t bytes() const { return groups * kGroupBytes; }
};

// Rows whose sums are made at once.
template <typename Kind>
struct Tile {
  int64_t number, first, rows;
  const typename Kind::Element* numbers;  // [rows, stride]
  int64_t stride;
};

// Of weights, asked of memory at once: a line, or a smaller group, whose line is then asked for again.
template <typename Kind>
constexpr int64_t kAskedBytes = std::min(kLine, Panel<Kind>::kGroupBytes);

template <typename Kind, int kRows>
using Sums = typename Finish<Kind>::template Sums<kRows>;

// Weights are asked of memory by several tiles, kShares, each of which asks for a part, from `ahead` on; 0: not by this
// one. With a group are asked for as many lines as it has by its share, or one for several groups.
template <typename Kind, int kShares>
[[gnu::always_inline]] inline void ask_with(const char* ahead, int64_t group) {
  constexpr int64_t kLines = Panel<Kind>::kGroupBytes / kAskedBytes<Kind>;  // of a group
  if constexpr (kShares > kLines) {
    __builtin_prefetch(ahead + kAskedBytes<Kind> * (group / (kShares / kLines)));
  } else if constexpr (kShares > 0) {
    constexpr int64_t kAsked = kLines / kShares;
    for (int64_t line = 0; line < kAsked; ++line)
      __builtin_prefetch(ahead + kAskedBytes<Kind> * (group * kAsked + line));
  }
}

template <typename Kind, int kRows, int kShares>
[[gnu::always_inline]] inline void add_products(const Panel<Kind>& panel, const Tile<Kind>& tile, const char* ahead,
                                                Sums<Kind, kRows>& sums) {
  for (int64_t group = 0; group < panel.groups; ++group) {
    ask_with<Kind, kShares>(ahead, group);
    const auto* from = panel.weights + group * kPanelVectors * Panel<Kind>::kVector;
    typename Kind::Factors factors[kPanelVectors];
    for (int i = 0; i < kPanelVectors; ++i) factors[i] = Kind::weights_at(from + i * Panel<Kind>::kVector);
    for_each<kRows>([&](auto row) __attribute__((always_inline)) {
      const typename Kind::Factors same =
          Kind::in_all_lanes(tile.numbers + row * tile.stride + group * kGroup<Kind>);
      for_each<kPanelVectors>([&](auto i) __attribute__((always_inline)) {
        sums[row][i] = Kind::add(sums[row][i], same, factors[i]);
      });
    });
  }
}

#if LANES == 8

// Of levels: those of the groups from the first to the last, which are in sets.
template <int kSize, int kRows, int kShares>
[[gnu::always_inline]] inline void add_sets(const Panel<OfLevels>& panel, const uint8_t* const (&numbers)[kRows],
                                            const char* ahead, int64_t first, int64_t last,
                                            Sums<OfLevels, kRows>& sums) {
  constexpr int64_t kVector = Panel<OfLevels>::kVector;
  for (int64_t group = first; group < last; group += kSize) {
    int64_t at[kSize];
    __m256i weights[kPanelVectors][kSize];
    for_each<kSize>([&](auto i) __attribute__((always_inline)) {
      at[i] = panel.places[group + i];
      if constexpr (kShares < 4 || i % 2 == 0) ask_with<OfLevels, kShares>(ahead, group + i);
      for_each<kPanelVectors>([&](auto vector) __attribute__((always_inline)) {
        weights[vector][i] = OfLevels::weights_at(panel.weights + ((group + i) * kPanelVectors + vector) * kVector);
      });
    });
    for_each<kRows>([&](auto row) __attribute__((always_inline)) {
      __m256i levels[kSize];
      for_each<kSize>([&](auto i) __attribute__((always_inline)) {
        levels[i] = OfLevels::in_all_lanes(numbers[row] + at[i]);
      });
      for_each<kPanelVectors>([&](auto vector) __attribute__((always_inline)) {
        sums[row][vector] = OfLevels::add(sums[row][vector], levels, weights[vector]);
      });
    });
  }
}

// Of levels: first those of groups in sets, then of the two halves of each of the few others.
template <int kRows, int kShares>
[[gnu::always_inline]] inline void add_levels(const Panel<OfLevels>& panel, const Tile<OfLevels>& tile,
                                              const char* ahead, Sums<OfLevels, kRows>& sums) {
  constexpr int64_t kVector = Panel<OfLevels>::kVector, kHalf = kPanelVectors * kVector / 2;
  const uint8_t* numbers[kRows];
  for (int row = 0; row < kRows; ++row) numbers[row] = tile.numbers + row * tile.stride;
  const int64_t in_sets = panel.sets.groups();
  add_sets<3, kRows, kShares>(panel, numbers, ahead, 0, panel.sets.in_threes, sums);
  add_sets<2, kRows, kShares>(panel, numbers, ahead, panel.sets.in_threes, in_sets, sums);
  for (int64_t group = in_sets; group < panel.groups; ++group) {
    const int8_t* from = panel.weights + group * 2 * kHalf;
    const int64_t at = panel.places[group];
    ask_with<OfLevels, kShares>(ahead, group);
    for (int half = 0; half < 2; ++half) {
      __m256i weights[kPanelVectors];
      for_each<kPanelVectors>([&](auto i) __attribute__((always_inline)) {
        weights[i] = OfWords::weights_at(from + half * kHalf + i * kVector / 2);
      });
      for_each<kRows>([&](auto row) __attribute__((always_inline)) {
        const __m256i levels = OfLevels::words_of(OfLevels::in_all_lanes(numbers[row] + at), half);
        for_each<kPanelVectors>([&](auto i) __attribute__((always_inline)) {
          sums[row][i] = OfWords::add(sums[row][i], levels, weights[i]);
        });
      });
    }
  }
}

#endif

template <typename Kind, int kRows, int kShares>
void multiply_rows(const Panel<Kind>& panel, const Tile<Kind>& tile, const char* ahead) {
  Sums<Kind, kRows> sums;
  for_each<kRows * kPanelVectors>([&](auto number) __attribute__((always_inline)) {
    constexpr int kRow = number / kPanelVectors, kVector = number % kPanelVectors;
    sums[kRow][kVector] = panel.finish.first(kVector);
  });
#if LANES == 8
  if constexpr (std::is_same_v<Kind, OfLevels>)
    add_levels<kRows, kShares>(panel, tile, ahead, sums);
  else
#endif
    add_products<Kind, kRows, kShares>(panel, tile, ahead, sums);
  panel.finish.template write<kRows>(sums, tile.first);
}

// Few sums are made sooner than memory gives their weights. So these are asked for early: just ahead of the only tile,
// or for the next panel, of which every one of the first tiles asks for a part.
template <typename Kind, int kRows = Kind::kMostRows>
void multiply_tile(const Panel<Kind>& panel, const Tile<Kind>& tile) {
  if constexpr (kRows > 1)
    if (tile.rows < kRows) return multiply_tile<Kind, kRows - 1>(panel, tile);
  const char* next = panel.first() + panel.bytes();
  if (panel.tiles == 1) return multiply_rows<Kind, kRows, 1>(panel, tile, panel.first() + kAhead);
  if (panel.tiles < 4) {
    if (tile.number < 2) return multiply_rows<Kind, kRows, 2>(panel, tile, next + tile.number * panel.bytes() / 2);
  } else if (tile.number < 4) {
    return multiply_rows<Kind, kRows, 4>(panel, tile, next + tile.number * panel.bytes() / 4);
  }
  multiply_rows<Kind, kRows, 0>(panel, tile, nullptr);
}

// How deep prepared levels are.
int64_t padded_depth(int64_t depth) {
  constexpr int64_t kSide = kGroup<OfLevels>;
  return (depth + kSide - 1) / kSide * kSide;
}

template <typename Kind>
void multiply(const PanelProduct<typename Kind::Number>& product, const typename Kind::Element* numbers,
              int64_t stride) {
  const int64_t tiles = (product.rows + Kind::kMostRows - 1) / Kind::kMostRows;
  const Finish<Kind> finish(product);
  const Panel<Kind> panel{product.weights, stride / kGroup<Kind>, tiles, product.sets, product.places, finish};
  for (int64_t number = 0; number < tiles; ++number) {
    const int64_t first = number * product.rows / tiles, rows = (number + 1) * product.rows / tiles - first;
    multiply_tile<Kind>(panel, {number, first, rows, numbers + first * stride, stride});
  }
}

void multiply_floats(const PanelProduct<float>& product) {
  multiply<OfFloats>(product, product.numbers, product.depth);
}

void multiply_levels(const PanelProduct<uint8_t>& product) {
  const int64_t stride = padded_depth(product.depth);
#if LANES == 8
  if (product.sets.groups() == 0) return multiply<OfWords>(product, product.words, stride);
#endif
  multiply<OfLevels>(product, product.numbers, stride);
}

template <typename To>
To* padded(const uint8_t* levels, int64_t rows, int64_t depth, To* to) {
  const int64_t stride = padded_depth(depth);
  for (int64_t row = 0; row < rows; ++row) {
    To* end = std::copy_n(levels + row * depth, depth, to + row * stride);
    std::fill(end, to + (row + 1) * stride, To{0});
  }
  return to;
}

Prepared prepared(const uint8_t* levels, int64_t rows, int64_t depth, bool want_words) {
  const bool pad = padded_depth(depth) != depth;
  const size_t count = static_cast<size_t>(rows * padded_depth(depth));
  const size_t bytes = want_words ? count * sizeof(int16_t) : 0;
  if (bytes == 0 && !pad) return {levels, nullptr};
  auto* room = static_cast<uint8_t*>(scratch(bytes + (pad ? count : 0)));
  return {pad ? padded(levels, rows, depth, room + bytes) : levels,
          want_words ? padded(levels, rows, depth, reinterpret_cast<int16_t*>(room)) : nullptr};
}

}  // namespace

extern const Products kProducts;
const Products kProducts = {kPanelColumns, kGroup<OfLevels>, kSets, prepared, multiply_levels, multiply_floats};

}  // namespace VECTORS
}  // namespace jumok
