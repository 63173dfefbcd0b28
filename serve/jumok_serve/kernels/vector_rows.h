// `Rows` in vectors; compiled once for each instruction set, which defines LANES and VECTORS, the name of it all.
//
// A row's result depends on nothing but the row: sums are taken in the order of its entries, and what lies behind them
// counts nothing.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "rows.h"

namespace jumok {
namespace VECTORS {
namespace {

constexpr int kLanes = LANES;
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
using Lanes = std::make_integer_sequence<int, kLanes>;

inline Floats load(const float* from) {
  Floats vector;
  std::memcpy(&vector, from, sizeof vector);
  return vector;
}

inline Floats load(const Half* from) {
#if LANES == 16
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#endif
}

inline void store(Floats vector, float* to) { std::memcpy(to, &vector, sizeof vector); }

inline void store(Floats vector, Half* to) {
#if LANES == 16
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)vector, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)vector, _MM_FROUND_TO_NEAREST_INT));
#endif
}

inline Floats all(float value) { return Floats{} + value; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Whole numbers nearest to x, for |x| < 2^22.
inline Floats rounded(Floats x) {
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: adding it leaves no fraction
  return (x + magic) - magic;
}

// e^x for x <= 0; what is below e^-87 is rounded up to it. The polynomial is that of Cephes' expf (Moshier).
inline Floats exponential(Floats x) {
  x = x < -87.0f ? all(-87.0f) : x;  // NaN stays
  const Floats whole = rounded(x * 1.44269504f);
  const Floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats sum = all(1.9875691500e-4f);
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * (rest * rest) + rest + 1.0f;
  return sum * (Floats)((__builtin_convertvector(whole, Ints) + 127) << 23);
}

// Lanes of `a` and, from kLanes on, of `b`, by their constant numbers.
template <int... kOrder>
inline Floats shuffled(Floats a, Floats b, std::integer_sequence<int, kOrder...>) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kOrder...);
#else
  return __builtin_shuffle(a, b, Ints{kOrder...});
#endif
}

// Lanes i and i ^ N change places.
template <int N, int... kLane>
inline Floats swapped(Floats x, std::integer_sequence<int, kLane...>) {
  return shuffled(x, x, std::integer_sequence<int, (kLane ^ N)...>());
}

template <int N = kLanes / 2>
inline float sum_of(Floats x) {
  x += swapped<N>(x, Lanes());
  if constexpr (N > 1) return sum_of<N / 2>(x);
  return x[0];
}

template <int N = kLanes / 2>
inline float largest_of(Floats x) {
  x = larger(x, swapped<N>(x, Lanes()));
  if constexpr (N > 1) return largest_of<N / 2>(x);
  return x[0];
}

// Pairs of lanes added up: those of `a` where a lane's bit N is 0, those of `b` elsewhere.
template <int N, int... kLane>
inline Floats paired(Floats a, Floats b, std::integer_sequence<int, kLane...>) {
  const auto own = std::integer_sequence<int, (kLane & N ? kLane + kLanes : kLane)...>();
  const auto other = std::integer_sequence<int, (kLane & N ? (kLane ^ N) + kLanes : kLane ^ N)...>();
  return shuffled(a, b, own) + shuffled(a, b, other);
}

// The sum of each of as many vectors as there are lanes, in order.
template <int N = 1>
inline Floats sums_of(Floats* vectors) {
  for (int i = 0; i < kLanes; i += 2 * N) vectors[i] = paired<N>(vectors[i], vectors[i + N], Lanes());
  if constexpr (2 * N < kLanes) return sums_of<2 * N>(vectors);
  return vectors[0];
}

// Attention with heads of kVectors vectors.
template <typename Element, int kVectors>
void attend(const Attention<Element>& row) {
  constexpr int kWidth = kVectors * kLanes;
  const int64_t count = row.count;
  const auto entry = [&](int64_t i) { return row.seen == nullptr ? i : int64_t{row.seen[i]}; };
  Floats query[kVectors];
  for (int i = 0; i < kVectors; ++i) query[i] = load(row.query + i * kLanes) * row.scale;
  Floats most = all(-INFINITY);
  for (int64_t first = 0; first < count; first += kLanes) {
    Floats products[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const Element* key = row.keys + kWidth * entry(first + lane < count ? first + lane : first);
      products[lane] = query[0] * load(key);
      for (int i = 1; i < kVectors; ++i) products[lane] += query[i] * load(key + i * kLanes);
    }
    Floats scores = sums_of(products);
    if (row.bias != nullptr)
      for (int lane = 0; lane < kLanes && first + lane < count; ++lane) scores[lane] += row.bias[entry(first + lane)];
    for (int64_t lane = count - first; lane < kLanes; ++lane) scores[lane] = -INFINITY;
    store(scores, row.weights + first);
    most = larger(most, scores);
  }
  const Floats largest = all(largest_of(most));
  Floats total = {};
  for (int64_t first = 0; first < count; first += kLanes) {
    const Floats scores = load(row.weights + first);
    const Floats weights = scores == -INFINITY ? Floats{} : exponential(scores - largest);
    store(weights, row.weights + first);
    total += weights;
  }
  Floats even[kVectors] = {}, odd[kVectors] = {};
  int64_t i = 0;
  for (; i + 1 < count; i += 2) {
    const Element *one = row.values + kWidth * entry(i), *next = row.values + kWidth * entry(i + 1);
    for (int j = 0; j < kVectors; ++j) {
      even[j] += load(one + j * kLanes) * row.weights[i];
      odd[j] += load(next + j * kLanes) * row.weights[i + 1];
    }
  }
  if (i < count)
    for (int j = 0; j < kVectors; ++j) even[j] += load(row.values + kWidth * entry(i) + j * kLanes) * row.weights[i];
  const float share = 1.0f / sum_of(total);
  for (int j = 0; j < kVectors; ++j) store((even[j] + odd[j]) * share, row.out + j * kLanes);
}

inline float one(float from) { return from; }
inline float one(Half from) { return _cvtsh_ss(from); }

// Attention with heads of any width.
template <typename Element>
void attend_any(const Attention<Element>& row) {
  const auto entry = [&](int64_t i) { return row.seen == nullptr ? i : int64_t{row.seen[i]}; };
  float most = -INFINITY;
  for (int64_t i = 0; i < row.count; ++i) {
    const Element* key = row.keys + row.width * entry(i);
    float product = 0;
    for (int64_t j = 0; j < row.width; ++j) product += row.query[j] * one(key[j]);
    row.weights[i] = product * row.scale + (row.bias == nullptr ? 0 : row.bias[entry(i)]);
    most = std::max(most, row.weights[i]);
  }
  std::fill(row.out, row.out + row.width, 0.0f);
  float total = 0;
  for (int64_t i = 0; i < row.count; ++i) {
    const Element* value = row.values + row.width * entry(i);
    const float weight = std::exp(row.weights[i] - most);
    total += weight;
    for (int64_t j = 0; j < row.width; ++j) row.out[j] += weight * one(value[j]);
  }
  for (int64_t j = 0; j < row.width; ++j) row.out[j] /= total;
}

template <typename Element>
void attend_row(const Attention<Element>& row) {
  switch (row.width) {
    case 1 * kLanes:
      return attend<Element, 1>(row);
    case 2 * kLanes:
      return attend<Element, 2>(row);
    case 4 * kLanes:
      return attend<Element, 4>(row);
    case 8 * kLanes:
      return attend<Element, 8>(row);
    default:
      return attend_any(row);
  }
}

void to_half(const float* from, Half* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(load(from + i), to + i);
  for (; i < count; ++i) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}

void quantize(const float* from, uint8_t* to, int64_t count, Levels levels) {
  const float share = 1.0f / levels.scale;  // a division takes several times as long as all the rest
  const auto level = [&](auto x, auto zero) {
    x = x * share;
    x = x < -512.0f ? zero - 512.0f : x;
    x = x > 512.0f ? zero + 512.0f : x;
    return x;
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Ints whole = __builtin_convertvector(rounded(level(load(from + i), Floats{})), Ints) + levels.zero_point;
    whole = whole < 0 ? Ints{} : whole;
    whole = whole > 255 ? Ints{} + 255 : whole;
    typedef uint8_t Bytes __attribute__((vector_size(LANES)));
    const Bytes bytes = __builtin_convertvector(whole, Bytes);
    std::memcpy(to + i, &bytes, sizeof bytes);
  }
  for (; i < count; ++i) {
    const int32_t whole = static_cast<int32_t>(std::nearbyint(level(from[i], 0.0f))) + levels.zero_point;
    to[i] = static_cast<uint8_t>(whole < 0 ? 0 : whole > 255 ? 255 : whole);
  }
}

// The sum of what `make` gives for vectors at 0, kLanes, ..; four sums are under way at once, so that none waits.
template <typename Make>
inline float sum_over(int64_t whole, Make make) {
  Floats sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= whole; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) sums[j] += make(i + j * kLanes);
  for (; i < whole; i += kLanes) sums[0] += make(i);
  return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void add_norm(const float* x, const float* y, const float* weight, const float* bias, float epsilon, float* sum,
              float* norm, int64_t count) {
  const int64_t whole = count - count % kLanes;
  float total = sum_over(whole, [&](int64_t i) {
    const Floats added = load(x + i) + load(y + i);
    store(added, sum + i);
    return added;
  });
  for (int64_t i = whole; i < count; ++i) total += sum[i] = x[i] + y[i];
  const float mean = total / static_cast<float>(count);
  float squares = sum_over(whole, [&](int64_t i) {
    const Floats distance = load(sum + i) - mean;
    return distance * distance;
  });
  for (int64_t i = whole; i < count; ++i) squares += (sum[i] - mean) * (sum[i] - mean);
  const float share = 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon);
  for (int64_t i = 0; i < whole; i += kLanes)
    store((load(sum + i) - mean) * share * load(weight + i) + load(bias + i), norm + i);
  for (int64_t i = whole; i < count; ++i) norm[i] = (sum[i] - mean) * share * weight[i] + bias[i];
}

// One pass: what was added up so far is made smaller where a block has a larger maximum.
Best log_sum(const float* row, int64_t count, float* maxima) {
  float most = -INFINITY;
  Floats total = {};
  const auto add = [&](const float* block, float* maximum) {
    Floats largest = load(block);
    for (int64_t i = kLanes; i < kBlock; i += kLanes) largest = larger(largest, load(block + i));
    *maximum = largest_of(largest);
    if (*maximum > most) {
      total *= most == -INFINITY ? 0.0f : std::exp(most - *maximum);
      most = *maximum;
    }
    const Floats reference = all(most == -INFINITY ? 0.0f : most);
    for (int64_t i = 0; i < kBlock; i += kLanes) total += exponential(load(block + i) - reference);
  };
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) add(row + i, maxima++);
  if (i < count) {
    float last[kBlock];
    std::memcpy(last, row + i, sizeof(float) * static_cast<size_t>(count - i));
    std::fill(last + (count - i), last + kBlock, -INFINITY);
    add(last, maxima);
  }
  const float sum = sum_of(total);
  return {most, most == -INFINITY || most == INFINITY ? NAN : std::log(sum)};
}

}  // namespace

extern const Rows kRows;
const Rows kRows = {attend_row<float>, attend_row<Half>, to_half, quantize, add_norm, log_sum};

}  // namespace VECTORS
}  // namespace jumok
