// Implementation of GemmKernels, compiled once for each instruction set, which defines LANES and ISA, the namespace.
//
// Sums of quantized inputs are exact integers, and sums of floats are added in the order of the depth. So no result
// depends on the grouping of rows.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "isa/gemm.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

inline int32_t four_bytes_at(const void* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

#if LANES == 16
constexpr int kPanelVectors = 4;

struct Uint8Inputs {
  using Number = uint8_t;
  using Element = uint8_t;
  using Factors = __m512i;  // 4 bytes a lane
  using Sum = Ints;
  static constexpr int kMaxRows = 6;

  static Factors weights_at(const int8_t* from) { return _mm512_loadu_si512(from); }
  static Factors broadcast(const Element* from) { return _mm512_set1_epi32(four_bytes_at(from)); }
  static Sum add(Sum sum, Factors inputs, Factors weights) {
    return (Sum)_mm512_dpbusd_epi32((__m512i)sum, inputs, weights);
  }
};
#else
constexpr int kPanelVectors = 2;

// Two quantized inputs a lane, as int16.
struct Int16Inputs {
  using Number = uint8_t;
  using Element = int16_t;
  using Factors = __m256i;
  using Sum = Ints;
  static constexpr int kMaxRows = 6;

  static Factors weights_at(const int8_t* from) {
    return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Factors broadcast(const Element* from) { return _mm256_set1_epi32(four_bytes_at(from)); }
  static Sum add(Sum sum, Factors inputs, Factors weights) { return sum + (Sum)_mm256_madd_epi16(inputs, weights); }
};

// Four quantized inputs a lane. An overflow group sums the int16 products of its chunks before they are widened to
// int32. Chunks outside of groups are widened to int16 first, two inputs at a time.
struct Uint8Inputs {
  using Number = uint8_t;
  using Element = uint8_t;
  using Factors = __m256i;
  using Sum = Ints;
  static constexpr int kMaxRows = 4;

  static Factors weights_at(const int8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static Factors broadcast(const Element* from) { return _mm256_set1_epi32(four_bytes_at(from)); }
  static Factors int16_pair(Factors same, int half) {  // the first or last two of four broadcast inputs
    return _mm256_shuffle_epi8(same, _mm256_set1_epi32(half == 0 ? 0x80018000 : 0x80038002));
  }
  template <int kChunks>
  static Sum add(Sum sum, const Factors (&inputs)[kChunks], const Factors (&weights)[kChunks]) {
    Factors words = _mm256_maddubs_epi16(inputs[0], weights[0]);
    for_each<kChunks - 1>([&](auto i) __attribute__((always_inline)) {
      words = _mm256_add_epi16(words, _mm256_maddubs_epi16(inputs[i + 1], weights[i + 1]));
    });
    return sum + (Sum)_mm256_madd_epi16(words, _mm256_set1_epi16(1));
  }
};
#endif

struct FloatInputs {
  using Number = float;
  using Element = float;
  using Factors = Floats;
  using Sum = Floats;
  static constexpr int kMaxRows = 6;

  static Factors weights_at(const float* from) { return load(from); }
#if LANES == 16
  static Factors broadcast(const Element* from) { return (Factors)_mm512_set1_ps(*from); }
  static Sum add(Sum sum, Factors numbers, Factors weights) {
    return (Sum)_mm512_fmadd_ps((__m512)numbers, (__m512)weights, (__m512)sum);
  }
#else
  static Factors broadcast(const Element* from) { return (Factors)_mm256_set1_ps(*from); }
  static Sum add(Sum sum, Factors numbers, Factors weights) {
    return (Sum)_mm256_fmadd_ps((__m256)numbers, (__m256)weights, (__m256)sum);
  }
#endif
};

// Consecutive weights of a column in a lane.
template <typename Kind>
constexpr int64_t kChunk = 4 / sizeof(typename Kind::Element);

constexpr int64_t kPanelColumns = kPanelVectors * kLanes;
constexpr int64_t kLine = 64, kPrefetchDistance = 4096;  // bytes
constexpr bool kOverflowGroups = LANES == 8;             // of chunks of quantized inputs

inline Floats silu(Floats x) {
  const Floats small = exponential(x < 0.0f ? x : -x);  // e^-|x|
  return x * (x < 0.0f ? small : all(1.0f)) / (small + 1.0f);
}

// x times the standard normal distribution function; erf by formula 7.1.26 of Abramowitz and Stegun.
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

// Epilogue of a product: zero point, scales, bias, activation, quantization.
template <typename Kind>
class Epilogue {
 public:
  using Sum = typename Kind::Sum;
  template <int kRows>
  using Sums = Sum[kRows][kPanelVectors];

  explicit Epilogue(const PanelGemm<typename Kind::Number>& product)
      : product_(product),
        quantizer_(product.quantization),
        lower_bound_(all(product.activation == Activation::kRelu ? 0.0f : -INFINITY)),
        slow_activation_(product.activation == Activation::kSilu || product.activation == Activation::kGelu) {
    for (int64_t i = 0; i < product.columns; ++i) {
      if constexpr (kQuantizedInputs) {
        offsets_[i] = -product.weight_sums[i] * product.zero_point;
        scales_[i] = product.scales[i] * product.scale;
      }
      if (product.bias != nullptr) bias_[i] = product.bias[i];
    }
  }

  // Initial sums of columns.
  Sum first(int vector) const {
    Sum sum = {};
    if constexpr (kQuantizedInputs) std::memcpy(&sum, offsets_ + vector * kLanes, sizeof sum);
    return sum;
  }

  template <int kRows>
  [[gnu::always_inline]] void write(const Sums<kRows>& sums, int64_t row) const {
    const int64_t stride = product_.stride;
    if (slow_activation_ || product_.columns < kPanelColumns) {
      float made[kRows * kPanelColumns];
      store_all<kRows>(sums, made, kPanelColumns, [](Floats x, float* to) { store(x, to); });
      write_through_buffer(made, kRows, row);
    } else if (product_.out != nullptr) {
      store_all<kRows>(sums, product_.out + row * stride, stride, [](Floats x, float* to) { store(x, to); });
    } else {
      store_all<kRows>(sums, product_.quantized_out + row * stride, stride,
                       [this](Floats x, uint8_t* to) { quantizer_.store(x, to); });
    }
  }

 private:
  static constexpr bool kQuantizedInputs = std::is_same_v<typename Kind::Number, uint8_t>;

  template <int kRows, typename Result, typename Store>
  [[gnu::always_inline]] void store_all(const Sums<kRows>& sums, Result* to, int64_t stride, Store store_one) const {
    for_each<kRows * kPanelVectors>([&](auto number) __attribute__((always_inline)) {
      constexpr int kRow = number / kPanelVectors, kVector = number % kPanelVectors;
      store_one(result(sums[kRow][kVector], kVector), to + kRow * stride + kVector * kLanes);
    });
  }

  Floats result(Sum sum, int vector) const {
    Floats x;
    if constexpr (kQuantizedInputs)
      x = __builtin_convertvector(sum, Floats) * load(scales_ + vector * kLanes) + load(bias_ + vector * kLanes);
    else
      x = sum + load(bias_ + vector * kLanes);
    return larger(lower_bound_, x);  // NaN stays
  }

  // Writes results of a slow activation or an incomplete panel. Not inlined, so that it is compiled once for all tiles.
  [[gnu::noinline]] void write_through_buffer(const float* numbers, int64_t rows, int64_t first) const {
    for (int64_t row = 0; row < rows; ++row) {
      float made[kPanelColumns];
      uint8_t quantized[kPanelColumns];
      for (int i = 0; i < kPanelVectors; ++i) {
        Floats x = load(numbers + row * kPanelColumns + i * kLanes);
        if (product_.activation == Activation::kSilu) x = silu(x);
        if (product_.activation == Activation::kGelu) x = gelu(x);
        store(x, made + i * kLanes);
        if (product_.out == nullptr) quantizer_.store(x, quantized + i * kLanes);
      }
      const int64_t at = (first + row) * product_.stride;
      if (product_.out != nullptr)
        std::copy(made, made + product_.columns, product_.out + at);
      else
        std::copy(quantized, quantized + product_.columns, product_.quantized_out + at);
    }
  }

  const PanelGemm<typename Kind::Number> product_;
  const Quantizer quantizer_;
  const Floats lower_bound_;
  const bool slow_activation_;
  alignas(Floats) int32_t offsets_[kPanelColumns] = {};
  alignas(Floats) float scales_[kPanelColumns] = {}, bias_[kPanelColumns] = {};
};

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

#if LANES == 8

// Adds the chunks from `first` to `last`, which are in overflow groups of kSize.
template <int kSize, int kRows, int kShares>
[[gnu::always_inline]] inline void add_groups(const Panel<Uint8Inputs>& panel, const uint8_t* const (&numbers)[kRows],
                                              const char* ahead, int64_t first, int64_t last,
                                              Sums<Uint8Inputs, kRows>& sums) {
  constexpr int64_t kVector = Panel<Uint8Inputs>::kVector;
  for (int64_t chunk = first; chunk < last; chunk += kSize) {
    int64_t at[kSize];
    __m256i weights[kPanelVectors][kSize];
    for_each<kSize>([&](auto i) __attribute__((always_inline)) {
      at[i] = panel.depth_offsets[chunk + i];
      if constexpr (kShares < 4 || i % 2 == 0) prefetch_share<Uint8Inputs, kShares>(ahead, chunk + i);
      for_each<kPanelVectors>([&](auto vector) __attribute__((always_inline)) {
        weights[vector][i] = Uint8Inputs::weights_at(panel.weights + ((chunk + i) * kPanelVectors + vector) * kVector);
      });
    });
    for_each<kRows>([&](auto row) __attribute__((always_inline)) {
      __m256i inputs[kSize];
      for_each<kSize>([&](auto i)
                          __attribute__((always_inline)) { inputs[i] = Uint8Inputs::broadcast(numbers[row] + at[i]); });
      for_each<kPanelVectors>([&](auto vector) __attribute__((always_inline)) {
        sums[row][vector] = Uint8Inputs::add(sums[row][vector], inputs, weights[vector]);
      });
    });
  }
}

// Adds chunks in overflow groups, then the two halves of each other chunk.
template <int kRows, int kShares>
[[gnu::always_inline]] inline void add_uint8_products(const Panel<Uint8Inputs>& panel, const Tile<Uint8Inputs>& tile,
                                                      const char* ahead, Sums<Uint8Inputs, kRows>& sums) {
  constexpr int64_t kVector = Panel<Uint8Inputs>::kVector, kHalf = kPanelVectors * kVector / 2;
  const uint8_t* numbers[kRows];
  for (int row = 0; row < kRows; ++row) numbers[row] = tile.numbers + row * tile.stride;
  const int64_t in_groups = panel.overflow_groups.chunks();
  add_groups<3, kRows, kShares>(panel, numbers, ahead, 0, panel.overflow_groups.in_triples, sums);
  add_groups<2, kRows, kShares>(panel, numbers, ahead, panel.overflow_groups.in_triples, in_groups, sums);
  for (int64_t chunk = in_groups; chunk < panel.chunks; ++chunk) {
    const int8_t* from = panel.weights + chunk * 2 * kHalf;
    const int64_t at = panel.depth_offsets[chunk];
    prefetch_share<Uint8Inputs, kShares>(ahead, chunk);
    for (int half = 0; half < 2; ++half) {
      __m256i weights[kPanelVectors];
      for_each<kPanelVectors>([&](auto i) __attribute__((always_inline)) {
        weights[i] = Int16Inputs::weights_at(from + half * kHalf + i * kVector / 2);
      });
      for_each<kRows>([&](auto row) __attribute__((always_inline)) {
        const __m256i inputs = Uint8Inputs::int16_pair(Uint8Inputs::broadcast(numbers[row] + at), half);
        for_each<kPanelVectors>([&](auto i) __attribute__((always_inline)) {
          sums[row][i] = Int16Inputs::add(sums[row][i], inputs, weights[i]);
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
    sums[kRow][kVector] = panel.epilogue.first(kVector);
  });
#if LANES == 8
  if constexpr (std::is_same_v<Kind, Uint8Inputs>)
    add_uint8_products<kRows, kShares>(panel, tile, ahead, sums);
  else
#endif
    add_products<Kind, kRows, kShares>(panel, tile, ahead, sums);
  panel.epilogue.template write<kRows>(sums, tile.first);
}

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
  constexpr int64_t kSide = kChunk<Uint8Inputs>;
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

void multiply_uint8(const PanelGemm<uint8_t>& product) {
  const int64_t stride = padded_depth(product.depth);
#if LANES == 8
  if (product.overflow_groups.chunks() == 0) return multiply<Int16Inputs>(product, product.inputs_int16, stride);
#endif
  multiply<Uint8Inputs>(product, product.inputs, stride);
}

template <typename To>
To* padded(const uint8_t* inputs, int64_t rows, int64_t depth, To* to) {
  const int64_t stride = padded_depth(depth);
  for (int64_t row = 0; row < rows; ++row) {
    To* end = std::copy_n(inputs + row * depth, depth, to + row * stride);
    std::fill(end, to + (row + 1) * stride, To{0});
  }
  return to;
}

PreparedInputs prepare(const uint8_t* inputs, int64_t rows, int64_t depth, bool as_int16) {
  const bool pad = padded_depth(depth) != depth;
  const size_t count = static_cast<size_t>(rows * padded_depth(depth));
  const size_t bytes = as_int16 ? count * sizeof(int16_t) : 0;
  if (bytes == 0 && !pad) return {inputs, nullptr};
  auto* room = static_cast<uint8_t*>(scratch(bytes + (pad ? count : 0)));
  return {pad ? padded(inputs, rows, depth, room + bytes) : inputs,
          as_int16 ? padded(inputs, rows, depth, reinterpret_cast<int16_t*>(room)) : nullptr};
}

}  // namespace

extern const GemmKernels kGemmKernels;
const GemmKernels kGemmKernels = {kPanelColumns, kChunk<Uint8Inputs>, kOverflowGroups,
                                  prepare,       multiply_uint8,      multiply_floats};

}  // namespace ISA
}  // namespace jumok
