// Implementation of RowKernels over the traits `Vec` of an instruction set, in its namespace ISA.
//
// A row's result depends on that row only: sums are taken in the order of its entries, and padding adds zeros.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "isa/layer_norm_impl.h"
#include "isa/row.h"
#include "isa/ssru_impl.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

// Scale of a key's or value's elements.
inline float scale_of(const float*, int64_t) { return 1; }
inline float scale_of(const Half*, int64_t) { return 1; }
inline float scale_of(const Int8* entry, int64_t width) {
  float scale;
  std::memcpy(&scale, entry + width, sizeof scale);
  return scale;
}

// Index of the i-th visible entry.
template <typename Element>
inline int64_t entry_of(const Attention<Element>& rows, int64_t i) {
  return rows.visible_entries == nullptr ? i : int64_t{rows.visible_entries[i]};
}

// Writes scores of kRows rows from `first_row` on, with heads of kVectors vectors, to `scores`, [kRows, padded(count)],
// and maxima by lane to `most`. Each key is loaded once for all rows.
template <typename Element, int kVectors, int kRows>
[[gnu::always_inline]] inline void score(const Attention<Element>& rows, int64_t first_row, const Element* keys,
                                         float* scores, Floats* most) {
  constexpr int kKeys = kRows == 1 ? 4 : kLanes;  // keys at once; few for one row, to waste little on the last ones
  const int64_t count = rows.count, room = padded(count);
  Floats query[kRows][kVectors];
  for (int row = 0; row < kRows; ++row)
    for (int i = 0; i < kVectors; ++i)
      query[row][i] = load(rows.queries + (first_row + row) * rows.stride + i * kLanes) * rows.scale;
  for (int row = 0; row < kRows; ++row) most[row] = all(-INFINITY);
  for (int64_t first = 0; first < count; first += kLanes) {
    Floats sums[kRows][kLanes / kKeys] = {};
    for (int64_t start = first; start < std::min(first + kLanes, count); start += kKeys) {
      Floats products[kRows][kKeys];
#pragma GCC unroll 16
      for (int i = 0; i < kKeys; ++i) {
        const Element* key = keys + rows.entry_stride * entry_of(rows, start + i < count ? start + i : first);
        Floats part = load(key);
        for (int row = 0; row < kRows; ++row) products[row][i] = query[row][0] * part;
        for (int j = 1; j < kVectors; ++j) {
          part = load(key + j * kLanes);
          for (int row = 0; row < kRows; ++row) products[row][i] += query[row][j] * part;
        }
        if constexpr (std::is_same_v<Element, Int8>)
          for (int row = 0; row < kRows; ++row) products[row][i] *= scale_of(key, kVectors * kLanes);
      }
      for (int row = 0; row < kRows; ++row) sums[row][(start - first) / kKeys] = each_of<Added, kKeys>(products[row]);
    }
    for (int row = 0; row < kRows; ++row) {
      Floats made = each_of<Added, kLanes / kKeys, kKeys>(sums[row]);
      made += load(rows.mask + (first_row + row) * rows.mask_stride + first);
      if (rows.bias != nullptr)
        for (int lane = 0; lane < kLanes && first + lane < count; ++lane)
          made[lane] += rows.bias[(first_row + row) * rows.bias_stride + entry_of(rows, first + lane)];
      store(made, scores + row * room + first);
      most[row] = larger(most[row], made);
    }
  }
}

// Turns scores of kRows rows into unnormalized weights; `share` is 1 / their sum.
template <int kRows>
inline void weigh(int64_t count, const Floats* most, float* scores, float* share) {
  for (int row = 0; row < kRows; ++row) {
    float* own = scores + row * padded(count);
    const Floats largest = all(largest_of(most[row]));
    Floats total = {};
    for (int64_t first = 0; first < count; first += kLanes) {
      const Floats score = load(own + first);
      const Floats weight = score == -INFINITY ? Floats{} : exponential(score - largest);
      store(weight, own + first);
      total += weight;
    }
    const float sum = sum_of(total);
    share[row] = sum == 0 ? 0 : 1 / sum;
  }
}

// Adds up kPart vectors of weighted values of kRows rows, from vector `first` on, loading each value once, in kSums
// interleaved sums.
template <typename Element, int kVectors, int kPart, int kRows, int kSums>
[[gnu::always_inline]] inline void add_up_part(const Attention<Element>& rows, int64_t first_row, int first,
                                               const Element* values, const float* weights, const float* share) {
  const int64_t count = rows.count, room = padded(count);
  Floats sums[kSums][kRows][kPart] = {};
  const auto add = [&](int64_t i, Floats(&to)[kRows][kPart]) {
    const Element* value = values + rows.entry_stride * entry_of(rows, i);
    float scaled[kRows];
    for (int row = 0; row < kRows; ++row) scaled[row] = weights[row * room + i] * scale_of(value, kVectors * kLanes);
    for (int j = 0; j < kPart; ++j) {
      const Floats part = load(value + (first + j) * kLanes);
      for (int row = 0; row < kRows; ++row) to[row][j] += part * scaled[row];
    }
  };
  int64_t i = 0;
  for (; i + kSums <= count; i += kSums)
    for (int sum = 0; sum < kSums; ++sum) add(i + sum, sums[sum]);
  if (i < count) add(i, sums[0]);
  for (int row = 0; row < kRows; ++row)
    for (int j = 0; j < kPart; ++j) {
      const Floats sum = kSums == 1 ? sums[0][row][j] : sums[0][row][j] + sums[kSums - 1][row][j];
      store(sum * share[row], rows.out + (first_row + row) * rows.out_stride + (first + j) * kLanes);
    }
}

template <typename Element, int kVectors, int kRows, int kSums>
[[gnu::always_inline]] inline void add_up(const Attention<Element>& rows, int64_t first_row, const Element* values,
                                          const float* weights, const float* share) {
  constexpr int kPart = std::min(kVectors, Vec::kHeadVectors);
  if constexpr (kPart == kVectors)
    add_up_part<Element, kVectors, kPart, kRows, kSums>(rows, first_row, 0, values, weights, share);
  else
    for (int first = 0; first < kVectors; first += kPart)
      add_up_part<Element, kVectors, kPart, kRows, kSums>(rows, first_row, first, values, weights, share);
}

// Attention of kRows rows that share keys and values.
template <typename Element, int kVectors, int kRows, int kSums>
void attend(const Attention<Element>& all_rows, int64_t first_row) {
  const Attention<Element> own = all_rows;  // a copy, which no store can alias, so that it stays in registers
  Floats most[kRows];
  float share[kRows];
  score<Element, kVectors, kRows>(own, first_row, own.keys, own.weights, most);
  weigh<kRows>(own.count, most, own.weights, share);
  add_up<Element, kVectors, kRows, kSums>(own, first_row, own.values, own.weights, share);
}

// Attention of kRows rows with their own keys and values. Steps are interleaved to hide latencies. Values are added up
// as for a single row, so that the result does not depend on kRows.
template <typename Element, int kVectors, int kRows>
void attend_apart(const Attention<Element>& all_rows, int64_t first_row) {
  const Attention<Element> own = all_rows;
  const int64_t room = padded(own.count);
  Floats most[kRows];
  float share[kRows];
  for (int row = 0; row < kRows; ++row)
    score<Element, kVectors, 1>(own, first_row + row, own.keys + (first_row + row) * own.row_stride,
                                own.weights + row * room, most + row);
  weigh<kRows>(own.count, most, own.weights, share);
  for (int row = 0; row < kRows; ++row)
    add_up<Element, kVectors, 1, 2>(own, first_row + row, own.values + (first_row + row) * own.row_stride,
                                    own.weights + row * room, share + row);
}

inline float one(float from) { return from; }
inline float one(Half from) { return Vec::from_half(from); }
inline float one(Int8 from) { return from; }

// Attention of a row with heads of any width.
template <typename Element>
void attend_any(const Attention<Element>& rows, int64_t row) {
  const auto entry = [&](int64_t i) { return rows.visible_entries == nullptr ? i : int64_t{rows.visible_entries[i]}; };
  const float* query = rows.queries + row * rows.stride;
  float* out = rows.out + row * rows.out_stride;
  float most = -INFINITY;
  for (int64_t i = 0; i < rows.count; ++i) {
    const Element* key = rows.keys + row * rows.row_stride + rows.entry_stride * entry(i);
    float product = 0;
    for (int64_t j = 0; j < rows.width; ++j) product += query[j] * one(key[j]);
    product *= scale_of(key, rows.width);
    rows.weights[i] = product * rows.scale + rows.mask[row * rows.mask_stride + i];
    if (rows.bias != nullptr) rows.weights[i] += rows.bias[row * rows.bias_stride + entry(i)];
    most = std::max(most, rows.weights[i]);
  }
  std::fill(out, out + rows.width, 0.0f);
  float total = 0;
  for (int64_t i = 0; i < rows.count; ++i) {
    if (rows.weights[i] == -INFINITY) continue;
    const Element* value = rows.values + row * rows.row_stride + rows.entry_stride * entry(i);
    const float weight = std::exp(rows.weights[i] - most);
    total += weight;
    const float scaled = weight * scale_of(value, rows.width);
    for (int64_t j = 0; j < rows.width; ++j) out[j] += scaled * one(value[j]);
  }
  for (int64_t j = 0; j < rows.width && total != 0; ++j) out[j] /= total;
}

template <typename Element, int kVectors>
void attend_in_groups(const Attention<Element>& rows) {
  int64_t row = 0;
  if (rows.row_stride != 0) {
    for (; row + 2 <= rows.rows; row += 2) attend_apart<Element, kVectors, 2>(rows, row);
    for (; row < rows.rows; ++row) attend_apart<Element, kVectors, 1>(rows, row);
    return;
  }
  for (; row + kRowsPerBlock <= rows.rows; row += kRowsPerBlock) attend<Element, kVectors, kRowsPerBlock, 1>(rows, row);
  for (; row + 2 <= rows.rows; row += 2) attend<Element, kVectors, 2, 1>(rows, row);
  if (row == rows.rows) return;
  if (rows.row_count_invariant)
    attend<Element, kVectors, 1, 1>(rows, row);
  else  // two sums, to hide the latency of additions
    attend<Element, kVectors, 1, 2>(rows, row);
}

template <typename Element>
void attend_rows(const Attention<Element>& rows) {
  if constexpr (Vec::kIntegerAttention && std::is_same_v<Element, Int8>)
    if (attend_in_integers(rows)) return;
  constexpr int kLeast = kLanes == 4 ? 4 : 1;  // vectors of the narrowest head
  switch (rows.width) {
    case 1 * kLeast* kLanes:
      return attend_in_groups<Element, 1 * kLeast>(rows);
    case 2 * kLeast* kLanes:
      return attend_in_groups<Element, 2 * kLeast>(rows);
    case 4 * kLeast* kLanes:
      return attend_in_groups<Element, 4 * kLeast>(rows);
    case 8 * kLeast* kLanes:
      return attend_in_groups<Element, 8 * kLeast>(rows);
    default:
      for (int64_t row = 0; row < rows.rows; ++row) attend_any(rows, row);
  }
}

void to_half(const float* from, Half* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(from + i), to + i);
  for (; i < count; ++i) to[i] = Vec::to_half(from[i]);
}

// Quantizes four heads at once, in the time of two.
void four_heads_to_int8(const float* from, int64_t width, Int8* to, int64_t stride) {
  Floats largest[4] = {};
  for (int head = 0; head < 4; ++head)
    for (int64_t i = 0; i < width; i += kLanes)
      largest[head] = LargerMagnitude()(largest[head], magnitude(load(from + head * width + i)));
  const Floats most = of_four<LargerMagnitude>(largest);
  float shares[kLanes], scales[kLanes];
  store(most == 0.0f ? Floats{} : 127.0f / most, shares);
  store(most / 127.0f + (most - most), scales);
  for (int head = 0; head < 4; ++head) {
    const Floats share = all(shares[head * kLanes / 4]);
    Int8* quantized = to + head * stride;
    for (int64_t i = 0; i < width; i += kLanes) store(load(from + head * width + i) * share, quantized + i);
    std::memcpy(quantized + width, scales + head * kLanes / 4, sizeof(float));
  }
}

void head_to_int8(const float* from, int64_t count, Int8* to) {
  const int64_t whole = count - count % kLanes;
  Floats most = {}, odd = {};
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Floats numbers = load(from + i);
    most = larger(most, magnitude(numbers));
    odd += numbers - numbers;
  }
  float largest = largest_of(most), not_a_number = sum_of(odd);  // 0, or NaN, which a maximum may hide
  for (int64_t i = whole; i < count; ++i) {
    largest = std::max(largest, std::abs(from[i]));
    not_a_number += from[i] - from[i];
  }
  const float share = largest == 0 ? 0 : 127 / largest, scale = largest / 127 + not_a_number;
  for (int64_t i = 0; i < whole; i += kLanes) store(load(from + i) * share, to + i);
  for (int64_t i = whole; i < count; ++i) to[i] = static_cast<Int8>(std::lrint(from[i] * share));
  std::memcpy(to + count, &scale, sizeof scale);
}

void to_int8(const float* from, int64_t width, int64_t heads, Int8* to, int64_t stride) {
  int64_t head = 0;
  if (width % kLanes == 0)
    for (; head + 4 <= heads; head += 4) four_heads_to_int8(from + head * width, width, to + head * stride, stride);
  for (; head < heads; ++head) head_to_int8(from + head * width, width, to + head * stride);
}

void from_int8(const Int8* from, float scale, float factor, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(from + i) * scale * factor, to + i);
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]) * scale * factor;
}

void quantize(const float* from, uint8_t* to, int64_t count, Quantization quantization) {
  const Quantizer quantizer(quantization);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) quantizer.store(load(from + i), to + i);
  if (i < count) {
    float rest[kLanes] = {};
    uint8_t made[kLanes];
    std::memcpy(rest, from + i, sizeof(float) * static_cast<size_t>(count - i));
    quantizer.store(load(rest), made);
    std::memcpy(to + i, made, static_cast<size_t>(count - i));
  }
}

float quantize_row(const float* from, int64_t width, bool rectified, uint8_t* to, Quantization quantization) {
  const int64_t whole = width - width % kLanes, rest = width - whole;
  const Floats least = all(rectified ? 0.0f : -INFINITY);
  float last[kLanes] = {};
  std::copy_n(from + whole, rest, last);
  Floats most = magnitude(larger(least, load(last)));
  for (int64_t i = 0; i < whole; i += kLanes) most = LargerMagnitude()(most, magnitude(larger(least, load(from + i))));
  const float largest = of_lanes<LargerMagnitude>(most);
  const Floats divisor = all(largest), scale = all(quantization.scale);
  const auto store_levels = [&](Floats numbers, uint8_t* levels) __attribute__((always_inline)) {
    const Floats shares = numbers / divisor / scale;
    Vec::to_uint8(shares > 512.0f ? all(512.0f) : shares, quantization.zero_point, levels);
  };
  for (int64_t i = 0; i < whole; i += kLanes) store_levels(load(from + i), to + i);
  if (rest > 0) {
    uint8_t levels[kLanes];
    store_levels(load(last), levels);
    std::copy_n(levels, rest, to + whole);
  }
  return largest;
}

// One pass over kLanes blocks at a time, rescaling the sum when the maximum grows, and prefetching the next blocks.
LogSumExp log_sum_exp(const float* const* blocks, int64_t count, float* maxima) {
  constexpr int kSums = kBlock / kLanes;
  float most = -INFINITY;
  Floats totals[kSums] = {};
  for (int64_t first = 0; first < count; first += kLanes) {
    const int64_t last = std::min(first + kLanes, count);
    Floats largest[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const float* block = blocks[std::min(first + lane, last - 1)];
      largest[lane] = load(block);
      for (int64_t i = kLanes; i < kBlock; i += kLanes) largest[lane] = larger(largest[lane], load(block + i));
    }
    const Floats of_blocks = each_of<Larger, kLanes>(largest);
    std::memcpy(maxima + first, &of_blocks, sizeof(float) * static_cast<size_t>(last - first));
    if (const float next = largest_of(of_blocks); next > most) {
      const float share = most == -INFINITY ? 0.0f : std::exp(most - next);
      for (Floats& total : totals) total *= share;
      most = next;
    }
    const Floats reference = all(most == -INFINITY ? 0.0f : most);
    for (int64_t index = first; index < last; ++index) {
      prefetch<kSums>(blocks[std::min(index + kLanes, count - 1)]);
      for (int i = 0; i < kSums; ++i) totals[i] += exponential(load(blocks[index] + i * kLanes) - reference);
    }
  }
  Floats total = totals[0];
  for (int i = 1; i < kSums; ++i) total += totals[i];
  return {most, most == -INFINITY || most == INFINITY ? NAN : std::log(sum_of(total))};
}

}  // namespace

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = {attend_rows<float>, attend_rows<Half>, attend_rows<Int8>, to_half,  to_int8,
                                from_int8,          quantize,          quantize_row,      add_norm, advance_ssru,
                                log_sum_exp};

}  // namespace ISA
}  // namespace jumok
