// Implementation of RowKernels::add_norm.
#pragma once

#include <algorithm>
#include <cmath>

#include "isa/row.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

constexpr int kNormRows = 4;  // at once, to hide the latency of sums
constexpr int kSums = 4;      // interleaved sums of a row

// Sums `make(row, i)` over the vectors at i = 0, kLanes, .. of each row.
template <int kRows, typename Make>
[[gnu::always_inline]] inline void sum_up(int64_t whole, float (&totals)[kRows], Make make) {
  Floats sums[kRows][kSums];
  for_each<kRows * kSums>([&](auto number)
                              __attribute__((always_inline)) { sums[number / kSums][number % kSums] = Floats{}; });
  int64_t i = 0;
  for (; i + kSums * kLanes <= whole; i += kSums * kLanes)
    for_each<kRows * kSums>([&](auto number) __attribute__((always_inline)) {
      constexpr int kRow = number / kSums, kSum = number % kSums;
      sums[kRow][kSum] += make(kRow, i + kSum * kLanes);
    });
  for (; i < whole; i += kLanes)
    for_each<kRows>([&](auto row) __attribute__((always_inline)) { sums[row][0] += make(row, i); });
  for_each<kRows>([&](auto row) __attribute__((always_inline)) {
    totals[row] = sum_of((sums[row][0] + sums[row][1]) + (sums[row][2] + sums[row][3]));
  });
}

// The same in order, from the first number to the last.
template <int kRows, typename Make>
[[gnu::always_inline]] inline void sum_in_order(int64_t width, float (&totals)[kRows], Make make) {
  std::fill(totals, totals + kRows, 0.0f);
  for (int64_t i = 0; i < width; ++i)
    for_each<kRows>([&](auto row) __attribute__((always_inline)) { totals[row] += make(row, i); });
}

// Norms as Marian computes them without vectors; quantized values differ where rounding decides.
template <int kRows>
void add_norm_in_order(const AddNorm& all_rows, int64_t first) {
  const AddNorm own = all_rows;
  const int64_t width = own.width, place = first * width;
  const float *const x = own.x + place, *const y = own.y + place;
  float* const sum = own.sum + place;
  for (int64_t i = 0; i < kRows * width; ++i) sum[i] = x[i] + y[i];
  float means[kRows], deviations[kRows];
  sum_in_order<kRows>(width, means,
                      [&](int row, int64_t i) __attribute__((always_inline)) { return sum[row * width + i]; });
  for (float& mean : means) mean /= static_cast<float>(width);
  sum_in_order<kRows>(width, deviations, [&](int row, int64_t i) __attribute__((always_inline)) {
    const float distance = sum[row * width + i] - means[row];
    return unfused(distance * distance);
  });
  for (float& each : deviations) each = std::sqrt(each / static_cast<float>(width) + own.epsilon);
  const Quantizer quantizer(own.quantization);
  const auto scaled = [&](int row, Floats numbers, Floats weights, Floats biases) __attribute__((always_inline)) {
    return unfused((numbers - means[row]) / deviations[row] * weights) + biases;
  };
  const int64_t whole = width - width % kLanes, rest = width - whole;
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Floats weights = load(own.weight + i), biases = load(own.bias + i);
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = row * width + i;
      const Floats normal = scaled(row, load(sum + at), weights, biases);
      if (own.norm != nullptr) store(normal, own.norm + place + at);
      if (own.quantized != nullptr) quantizer.store(normal, own.quantized + place + at);
    }
  }
  for (int row = 0; row < kRows && rest > 0; ++row) {
    const int64_t at = row * width + whole;
    float numbers[kLanes] = {}, weights[kLanes] = {}, biases[kLanes] = {};
    std::copy_n(sum + at, rest, numbers);
    std::copy_n(own.weight + whole, rest, weights);
    std::copy_n(own.bias + whole, rest, biases);
    const Floats normal = scaled(row, load(numbers), load(weights), load(biases));
    uint8_t quantized[kLanes];
    store(normal, numbers);
    quantizer.store(normal, quantized);
    if (own.norm != nullptr) std::copy_n(numbers, rest, own.norm + place + at);
    if (own.quantized != nullptr) std::copy_n(quantized, rest, own.quantized + place + at);
  }
}

template <int kRows>
void add_norm_of(const AddNorm& all_rows, int64_t first) {
  const AddNorm own = all_rows;  // a copy, which no store can alias
  const int64_t width = own.width, whole = width - width % kLanes, place = first * width;
  const float *const x = own.x + place, *const y = own.y + place;
  float *const sum = own.sum + place, *const norm = own.norm == nullptr ? nullptr : own.norm + place;
  float means[kRows], shares[kRows];
  sum_up<kRows>(whole, means, [&](int row, int64_t i) __attribute__((always_inline)) {
    const Floats added = load(x + row * width + i) + load(y + row * width + i);
    store(added, sum + row * width + i);
    return added;
  });
  for (int row = 0; row < kRows; ++row) {
    for (int64_t i = row * width + whole; i < (row + 1) * width; ++i) means[row] += sum[i] = x[i] + y[i];
    means[row] /= static_cast<float>(width);
  }
  sum_up<kRows>(whole, shares, [&](int row, int64_t i) __attribute__((always_inline)) {
    const Floats distance = load(sum + row * width + i) - means[row];
    return distance * distance;
  });
  for (int row = 0; row < kRows; ++row) {
    for (int64_t i = row * width + whole; i < (row + 1) * width; ++i)
      shares[row] += (sum[i] - means[row]) * (sum[i] - means[row]);
    shares[row] = 1.0f / std::sqrt(shares[row] / static_cast<float>(width) + own.epsilon);
  }
  const Quantizer quantizer(own.quantization);
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Floats weight = load(own.weight + i), bias = load(own.bias + i);
    for_each<kRows>([&](auto row) __attribute__((always_inline)) {
      const int64_t at = row * width + i;
      const Floats normal = (load(sum + at) - means[row]) * shares[row] * weight + bias;
      if (norm != nullptr) store(normal, norm + at);
      if (own.quantized != nullptr) quantizer.store(normal, own.quantized + place + at);
    });
  }
  for (int row = 0; row < kRows && whole < width; ++row) {
    const int64_t at = row * width + whole, rest = width - whole;
    float normal[kLanes] = {};
    for (int64_t i = 0; i < rest; ++i)
      normal[i] = (sum[at + i] - means[row]) * shares[row] * own.weight[whole + i] + own.bias[whole + i];
    uint8_t quantized[kLanes];
    quantizer.store(load(normal), quantized);
    if (norm != nullptr) std::copy_n(normal, rest, norm + at);
    if (own.quantized != nullptr) std::copy_n(quantized, rest, own.quantized + place + at);
  }
}

void add_norm(const AddNorm& rows) {
  int64_t row = 0;
  for (; row + kNormRows <= rows.rows; row += kNormRows)
    rows.in_order ? add_norm_in_order<kNormRows>(rows, row) : add_norm_of<kNormRows>(rows, row);
  for (; row < rows.rows; ++row) rows.in_order ? add_norm_in_order<1>(rows, row) : add_norm_of<1>(rows, row);
}

}  // namespace
}  // namespace ISA
}  // namespace jumok
