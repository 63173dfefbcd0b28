// Attention over int8 keys and values in integers with VNNI: blocks of four rows and four entries.
//
// Queries are rounded to 15 bits with sign. Weights times the scales of values are rounded to 16 bits, scaled by the
// largest of a row. Sums of products are exact. In a vector, lane 4r + e belongs to row r and entry e of a block.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa/avx512_vnni/vec.h"
#include "isa/row.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

static_assert(kLanes == 16, "blocks of four rows and four entries");
constexpr int kBlockRows = 4, kBlockEntries = 4;
constexpr float kMostQuery = 16383, kMostWeight = 65535;

struct AddedWhole {
  Floats operator()(Floats a, Floats b) const { return (Floats)((Ints)a + (Ints)b); }
};

// Rows with heads of kLines * 64 values, from `first_row` on; kShared: they share keys and values.
template <int kLines, bool kShared, int kRows>
class Int8Block {
 public:
  Int8Block(const Attention<Int8>& rows, int64_t first_row)
      : rows_(rows),
        first_row_(first_row),
        blocks_((rows.count + kBlockEntries - 1) / kBlockEntries),
        keys_(rows.keys + (kShared ? 0 : first_row * rows.row_stride)),
        values_(rows.values + (kShared ? 0 : first_row * rows.row_stride)),
        weights_(rows.weights),
        key_scales_(weights_ + blocks_ * kLanes),
        value_scales_(key_scales_ + blocks_ * kLanes),
        places_(reinterpret_cast<int32_t*>(value_scales_ + blocks_ * kLanes)) {}

  void attend() {
    find();
    const Floats most = score();
    const Floats shares = weigh(most);
    alignas(64) float share[kLanes];
    store(shares, share);
    constexpr int kAtOnce = kShared && kRows > 1 ? 2 : 1;  // as many as registers hold sums for
    for (int row = 0; row < kRows; row += kAtOnce)
      for (int line = 0; line < kLines; ++line) add_up<kAtOnce>(row, line, share);
  }

 private:
  static constexpr int kWidth = 64 * kLines, kWords = 2 * kLines;

  const float* query(int row) const { return rows_.queries + (first_row_ + row) * rows_.stride; }
  int64_t to_row(int row) const { return kShared ? 0 : row * rows_.row_stride; }

  // Finds entries' offsets and scales, which rows share if kShared. The last block is padded with the first entry,
  // which the mask hides.
  void find() {
    constexpr int kScales = kShared ? 1 : kBlockRows;
    for (int64_t i = 0; i < blocks_ * kBlockEntries; ++i) {
      const int64_t seen = i < rows_.count ? i : 0,
                    entry = rows_.visible_entries == nullptr ? seen : rows_.visible_entries[seen];
      const int64_t place = entry * rows_.entry_stride;
      const int64_t lane = i / kBlockEntries * kScales * kBlockEntries + i % kBlockEntries;
      places_[i] = static_cast<int32_t>(place);
      for (int row = 0; row < kScales; ++row) {
        const int64_t at = to_row(row < kRows ? row : 0) + place + kWidth;
        std::memcpy(key_scales_ + lane + row * kBlockEntries, keys_ + at, sizeof(float));
        std::memcpy(value_scales_ + lane + row * kBlockEntries, values_ + at, sizeof(float));
      }
    }
  }

  // Scales of a block's entries for each row.
  static Floats scales_of(const float* scales, int64_t block) {
    if constexpr (kShared) return (Floats)_mm512_broadcast_f32x4(_mm_loadu_ps(scales + block * kBlockEntries));
    return load(scales + block * kLanes);
  }

  // Writes scores, and returns the maximum of each row.
  Floats score() {
    Floats largest[kBlockRows] = {};
    for (int row = 0; row < kRows; ++row)
      for (int i = 0; i < kWidth; i += kLanes)
        largest[row] = LargerMagnitude()(largest[row], magnitude(load(query(row) + i)));
    const Floats most_of_query = of_four<LargerMagnitude>(largest);
    alignas(64) float shares[kLanes];
    store(most_of_query == 0.0f ? Floats{} : kMostQuery / most_of_query, shares);
    // NaN if a query is NaN or infinite.
    const Floats scales = most_of_query * (rows_.scale / kMostQuery) + (most_of_query - most_of_query);
    __m512i words[kRows][kWords];
    for (int row = 0; row < kRows; ++row) {
      const Floats share = all(shares[row * kBlockEntries]);
      for (int i = 0; i < kWords; ++i) {
        const float* from = query(row) + i * 2 * kLanes;
        const __m256i low = rounded(load(from) * share), high = rounded(load(from + kLanes) * share);
        words[row][i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
      }
    }
    Floats most = all(-INFINITY);
    for (int64_t block = 0; block < blocks_; ++block) {
      Floats sums[kLanes] = {};
#pragma GCC unroll 4
      for (int row = 0; row < kRows; ++row)
#pragma GCC unroll 4
        for (int i = 0; i < kBlockEntries; ++i) {
          const Int8* key = keys_ + to_row(row) + places_[block * kBlockEntries + i];
          __m512i sum = _mm512_setzero_si512();
          for (int part = 0; part < kWords; ++part) {
            const auto* quantized = reinterpret_cast<const __m256i*>(key) + part;
            sum = _mm512_dpwssd_epi32(sum, _mm512_cvtepi8_epi16(_mm256_loadu_si256(quantized)), words[row][part]);
          }
          sums[row * kBlockEntries + i] = (Floats)sum;
        }
      const Ints whole = (Ints)each_of<AddedWhole, kLanes>(sums);
      Floats made = __builtin_convertvector(whole, Floats) * scales * scales_of(key_scales_, block) + mask(block);
      if (rows_.bias != nullptr) made += bias(block);
      store(made, weights_ + block * kLanes);
      most = larger(most, made);
    }
    return of_quarters<Larger>(most);
  }

  static __m256i rounded(Floats numbers) { return _mm512_cvtepi32_epi16(_mm512_cvtps_epi32((__m512)numbers)); }

  Floats mask(int64_t block) const {
    const float* first = rows_.mask + first_row_ * rows_.mask_stride + block * kBlockEntries;
    if constexpr (!kShared) return (Floats)_mm512_broadcast_f32x4(_mm_loadu_ps(first));  // heads share the mask
    __m512 of_rows = _mm512_castps128_ps512(_mm_loadu_ps(first));
    if constexpr (kRows > 1) of_rows = _mm512_insertf32x4(of_rows, _mm_loadu_ps(first + rows_.mask_stride), 1);
    if constexpr (kRows > 2) of_rows = _mm512_insertf32x4(of_rows, _mm_loadu_ps(first + 2 * rows_.mask_stride), 2);
    if constexpr (kRows > 3) of_rows = _mm512_insertf32x4(of_rows, _mm_loadu_ps(first + 3 * rows_.mask_stride), 3);
    return (Floats)of_rows;
  }

  Floats bias(int64_t block) const {
    alignas(64) float added[kLanes] = {};
    for (int row = 0; row < kRows; ++row)
      for (int64_t i = 0, entry = block * kBlockEntries; i < kBlockEntries && entry < rows_.count; ++i, ++entry)
        added[row * kBlockEntries + i] =
            rows_.bias[(first_row_ + row) * rows_.bias_stride +
                       (rows_.visible_entries == nullptr ? entry : rows_.visible_entries[entry])];
    return load(added);
  }

  // Turns scores and scales of values into weights of two bytes: for each block the high bytes, then the low bytes.
  // Returns the factors of the sums.
  Floats weigh(Floats most) {
    Floats total = {}, largest = {}, odd = {};  // odd: 0, or NaN for an infinite or NaN weight
    for (int64_t block = 0; block < blocks_; ++block) {
      const Floats score = load(weights_ + block * kLanes);
      const Floats weight = score == -INFINITY ? Floats{} : exponential(score - most);
      const Floats scaled = weight * scales_of(value_scales_, block);
      store(scaled, weights_ + block * kLanes);
      total += weight;
      odd += scaled - scaled;
      largest = larger(largest, scaled);
    }
    total = of_quarters<Added>(total), odd = of_quarters<Added>(odd), largest = of_quarters<Larger>(largest);
    const Floats share = largest == 0.0f ? Floats{} : kMostWeight / largest;
    for (int64_t block = 0; block < blocks_; ++block) {
      const __m512i level = _mm512_cvtps_epu32((__m512)(load(weights_ + block * kLanes) * share));
      store_bytes(_mm512_srli_epi32(level, 8), bytes(block));
      store_bytes(level, bytes(block) + kLanes);
    }
    return (total == 0.0f ? Floats{} : largest / (kMostWeight * total)) + odd;
  }

  // Bytes of a block's weights, which overwrite floats of this block or of earlier ones.
  uint8_t* bytes(int64_t block) const { return reinterpret_cast<uint8_t*>(weights_) + block * 2 * kLanes; }

  static void store_bytes(__m512i numbers, uint8_t* to) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(numbers));
  }

  // Adds up 64 dimensions of values for kAtOnce rows. The four entries of a dimension are brought into one lane.
  template <int kAtOnce>
  void add_up(int first, int line, const float* share) const {
    const int end = std::min(first + kAtOnce, kRows);
    __m512i high[kAtOnce][4], low[kAtOnce][4];
    for (int row = 0; row < kAtOnce; ++row)
      for (int i = 0; i < 4; ++i) high[row][i] = low[row][i] = _mm512_setzero_si512();
    const Int8* values = values_ + to_row(first) + 64 * line;
    for (int64_t block = 0; block < blocks_; ++block) {
      const int32_t* places = places_ + block * kBlockEntries;
      __m512i entry[kBlockEntries];
      for (int i = 0; i < kBlockEntries; ++i) entry[i] = _mm512_loadu_si512(values + places[i]);
      const __m512i first_low = _mm512_unpacklo_epi8(entry[0], entry[1]);
      const __m512i first_high = _mm512_unpackhi_epi8(entry[0], entry[1]);
      const __m512i last_low = _mm512_unpacklo_epi8(entry[2], entry[3]);
      const __m512i last_high = _mm512_unpackhi_epi8(entry[2], entry[3]);
      // lane 4i + j of vector k: dimension 16i + 4k + j
      const __m512i together[4] = {
          _mm512_unpacklo_epi16(first_low, last_low), _mm512_unpackhi_epi16(first_low, last_low),
          _mm512_unpacklo_epi16(first_high, last_high), _mm512_unpackhi_epi16(first_high, last_high)};
      for (int row = 0; row < kAtOnce; ++row) {
        const uint8_t* weights = bytes(block) + std::min(first + row, end - 1) * kBlockEntries;
        const __m512i of_high = four_bytes(weights), of_low = four_bytes(weights + kLanes);
        for (int i = 0; i < 4; ++i) {
          high[row][i] = _mm512_dpbusd_epi32(high[row][i], of_high, together[i]);
          low[row][i] = _mm512_dpbusd_epi32(low[row][i], of_low, together[i]);
        }
      }
    }
    for (int row = first; row < end; ++row) {
      const Floats factor = all(share[row * kBlockEntries]);
      __m512 made[4];
      for (int i = 0; i < 4; ++i)
        made[i] = (__m512)((floats(high[row - first][i]) * 256.0f + floats(low[row - first][i])) * factor);
      const __m512 a = _mm512_shuffle_f32x4(made[0], made[1], 0x44), b = _mm512_shuffle_f32x4(made[2], made[3], 0x44);
      const __m512 c = _mm512_shuffle_f32x4(made[0], made[1], 0xee), d = _mm512_shuffle_f32x4(made[2], made[3], 0xee);
      float* out = rows_.out + (first_row_ + row) * rows_.out_stride + 64 * line;
      _mm512_storeu_ps(out, _mm512_shuffle_f32x4(a, b, 0x88));
      _mm512_storeu_ps(out + kLanes, _mm512_shuffle_f32x4(a, b, 0xdd));
      _mm512_storeu_ps(out + 2 * kLanes, _mm512_shuffle_f32x4(c, d, 0x88));
      _mm512_storeu_ps(out + 3 * kLanes, _mm512_shuffle_f32x4(c, d, 0xdd));
    }
  }

  static Floats floats(__m512i whole) { return __builtin_convertvector((Ints)whole, Floats); }
  static __m512i four_bytes(const uint8_t* from) {
    int32_t four;
    std::memcpy(&four, from, sizeof four);
    return _mm512_set1_epi32(four);
  }

  const Attention<Int8> rows_;
  const int64_t first_row_, blocks_;
  const Int8 *const keys_, *const values_;
  float *const weights_, *const key_scales_, *const value_scales_;
  int32_t* const places_;
};

template <int kLines, bool kShared>
void attend_int8_in_blocks(const Attention<Int8>& rows) {
  int64_t row = 0;
  for (; row + 4 <= rows.rows; row += 4) Int8Block<kLines, kShared, 4>(rows, row).attend();
  for (; row + 2 <= rows.rows; row += 2) Int8Block<kLines, kShared, 2>(rows, row).attend();
  if (row < rows.rows) Int8Block<kLines, kShared, 1>(rows, row).attend();
}

template <int kLines>
void attend_int8(const Attention<Int8>& rows) {
  rows.row_stride == 0 ? attend_int8_in_blocks<kLines, true>(rows) : attend_int8_in_blocks<kLines, false>(rows);
}

// Attention in integers; false if there is none for heads of this width. Inlined by force, so that no other kernels are
// compiled for these widths.
[[gnu::always_inline]] inline bool attend_in_integers(const Attention<Int8>& rows) {
  if (rows.width == 64) return attend_int8<1>(rows), true;
  if (rows.width == 128) return attend_int8<2>(rows), true;
  return false;
}

}  // namespace
}  // namespace ISA
}  // namespace jumok
