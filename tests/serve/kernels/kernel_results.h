// Results of kernels for random inputs with fixed seeds, of the instruction set that `jumok::row_kernels` and
// `jumok::gemm_kernels` give.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "isa/gemm.h"
#include "isa/row.h"
#include "operators/packed_weights.h"

namespace {

using jumok::Activation;
using jumok::Half;
using jumok::Int8;
using Numbers = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

// Results of one instruction set in a fixed order.
struct Results {
  std::vector<Numbers> blocks;

  template <typename Element>
  void add(const std::vector<Element>& block) {
    blocks.emplace_back(block.begin(), block.end());
  }
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int whole(int least, int most) {
    return least + static_cast<int>(engine_() % static_cast<unsigned>(most - least + 1));
  }
  // Within -2 .. 2.
  float number() { return static_cast<float>(engine_() >> 8) * 0x1p-22f - 2; }
  Numbers numbers(int64_t count, float factor = 1) {
    Numbers made(static_cast<size_t>(count));
    for (float& one : made) one = factor * number();
    return made;
  }
  template <typename Whole>
  std::vector<Whole> wholes(int64_t count, int least, int most) {
    std::vector<Whole> made(static_cast<size_t>(count));
    for (Whole& number : made) number = static_cast<Whole>(whole(least, most));
    return made;
  }

 private:
  std::mt19937 engine_;  // its numbers are the same everywhere, unlike those of the standard distributions
};

void fail(const std::string& message) {
  std::fprintf(stderr, "%s\n", message.c_str());
  std::exit(1);
}

struct Size {
  int64_t rows, depth, columns;
};

std::vector<Size> product_sizes() {
  std::vector<Size> sizes;
  for (int64_t rows = 1; rows <= 13; ++rows) sizes.push_back({rows, 40 + rows, 30 + rows});
  for (const Size& size : {Size{1, 1, 1}, {1, 512, 130}, {2, 4, 64}, {7, 129, 64}, {25, 64, 5}, {30, 100, 130}})
    sizes.push_back(size);
  return sizes;
}

// A product of all panels, as the operators call it; `set` completes the call.
template <typename Number, typename Result, typename Set>
std::vector<Result> multiplied(const Size& size, const std::vector<Number>& inputs,
                               const std::vector<jumok::WeightOf<Number>>& matrix, bool transposed, Set set) {
  using Weights = jumok::PackedWeights<jumok::WeightOf<Number>>;
  const auto& kernels = jumok::gemm_kernels();
  const auto weights = Weights::of(matrix.data(), size.depth, size.columns, transposed);
  std::vector<Result> made(static_cast<size_t>(size.rows * size.columns));
  for (int64_t panel = 0; panel < weights->panels(); ++panel) {
    const int64_t column = panel * kernels.columns;
    jumok::PanelGemm<Number> call{};
    call.rows = size.rows, call.depth = size.depth, call.inputs = inputs.data();
    call.weights = weights->panel(panel), call.overflow_groups = weights->overflow_groups(panel);
    call.depth_offsets = weights->depth_offsets(panel), call.weight_sums = weights->sums() + column;
    call.stride = size.columns, call.columns = std::min(kernels.columns, size.columns - column);
    if constexpr (std::is_same_v<Result, uint8_t>)
      call.quantized_out = made.data() + column;
    else
      call.out = made.data() + column;
    set(call, column);
    if constexpr (std::is_same_v<Number, float>) {
      kernels.multiply_floats(call);
    } else {
      const auto prepared = kernels.prepare(inputs.data(), size.rows, size.depth, weights->needs_int16());
      call.inputs = prepared.uint8, call.inputs_int16 = prepared.int16;
      kernels.multiply(call);
    }
  }
  return made;
}

// Products whose floats are exact: scales are powers of two. Weights up to `most` fit into overflow groups, or not.
void multiply_int8(int most, Results& results) {
  Random random(static_cast<unsigned>(most));
  for (const Size& size : product_sizes()) {
    const auto inputs = random.wholes<uint8_t>(size.rows * size.depth, 0, 255);
    auto matrix = random.wholes<int8_t>(size.depth * size.columns, -most, most);
    if (most == 127) matrix[0] = -128;
    const bool transposed = random.whole(0, 1) == 1;
    const int32_t zero_point = random.whole(0, 255);
    Numbers scales(static_cast<size_t>(size.columns)), bias(scales.size()), expected;
    for (float& scale : scales) scale = random.whole(0, 1) == 0 ? 0x1p-7f : 0x1p-5f;
    for (float& number : bias) number = static_cast<float>(random.whole(-99, 99)) * 0x1p-7f;
    const auto set = [&](auto& call, int64_t column) {
      call.zero_point = zero_point, call.scale = 0.5f, call.scales = scales.data() + column;
      call.bias = bias.data() + column, call.quantization = {0x1p-2f, 100};
    };
    const auto found = multiplied<uint8_t, float>(size, inputs, matrix, transposed, set);
    for (int64_t row = 0; row < size.rows; ++row)
      for (int64_t column = 0; column < size.columns; ++column) {
        int64_t sum = 0;
        for (int64_t i = 0; i < size.depth; ++i)
          sum += (inputs[static_cast<size_t>(row * size.depth + i)] - zero_point) *
                 matrix[static_cast<size_t>(transposed ? column * size.depth + i : i * size.columns + column)];
        const auto at = static_cast<size_t>(column);
        expected.push_back(static_cast<float>(sum) * 0.5f * scales[at] + bias[at]);
      }
    if (found != expected) fail("a product of integers is wrong");
    results.add(found);
    const auto factors = random.numbers(size.rows);
    results.add(multiplied<uint8_t, float>(size, inputs, matrix, transposed, [&](auto& call, int64_t column) {
      set(call, column);
      call.factors = factors.data();
    }));
    results.add(multiplied<uint8_t, uint8_t>(size, inputs, matrix, transposed, set));
    results.add(multiplied<uint8_t, uint8_t>(size, inputs, matrix, transposed, [&](auto& call, int64_t column) {
      set(call, column);
      call.activation = Activation::kRelu, call.bias = nullptr;
    }));
  }
}

Results int8_products() {
  Results results;
  for (const int most : {5, 31, 127}) multiply_int8(most, results);
  return results;
}

// Small whole numbers, whose products and sums are exact in any order.
Results float_products_of_whole_numbers() {
  Results results;
  Random random(1);
  for (const Size& size : product_sizes())
    results.add(multiplied<float, float>(size, random.wholes<float>(size.rows * size.depth, -60, 60),
                                         random.wholes<float>(size.depth * size.columns, -60, 60), true,
                                         [](auto&, int64_t) {}));
  return results;
}

Results products_with_activations() {
  Results results;
  Random random(2);
  for (const Size& size : product_sizes()) {
    const Numbers inputs = random.numbers(size.rows * size.depth), matrix = random.numbers(size.depth * size.columns);
    const Numbers bias = random.numbers(size.columns, 20);  // some sums are far from 0
    for (const auto activation : {Activation::kNone, Activation::kSilu, Activation::kGelu, Activation::kRelu})
      results.add(multiplied<float, float>(size, inputs, matrix, false, [&](auto& call, int64_t column) {
        call.activation = activation, call.bias = bias.data() + column;
      }));
  }
  return results;
}

template <typename Element>
std::vector<Element> entries_of(const Numbers& numbers, int64_t width);
template <>
Numbers entries_of(const Numbers& numbers, int64_t) {
  return numbers;
}
template <>
std::vector<Half> entries_of(const Numbers& numbers, int64_t) {
  std::vector<Half> made(numbers.size());
  jumok::row_kernels()->to_half(numbers.data(), made.data(), static_cast<int64_t>(made.size()));
  return made;
}
template <>
std::vector<Int8> entries_of(const Numbers& numbers, int64_t width) {
  const int64_t heads = static_cast<int64_t>(numbers.size()) / width, stride = jumok::stride_of<Int8>(width);
  std::vector<Int8> made(static_cast<size_t>(heads * stride));
  jumok::row_kernels()->to_int8(numbers.data(), width, heads, made.data(), stride);
  return made;
}

void attend(const jumok::Attention<float>& rows) { jumok::row_kernels()->attend(rows); }
void attend(const jumok::Attention<Half>& rows) { jumok::row_kernels()->attend_half(rows); }
void attend(const jumok::Attention<Int8>& rows) { jumok::row_kernels()->attend_int8(rows); }

// Attention of beams that share entries, and of heads that have their own; some entries are masked.
template <typename Element>
Results attention() {
  Results results;
  Random random(3);
  for (const int64_t width : {6, 8, 16, 32, 64, 128})
    for (const int64_t count : {1, 4, 17, 50})
      for (const int64_t rows : {1, 3, 4, 6})
        for (const bool shared : {true, false}) {
          const int64_t entries = count + 5, heads = shared ? 1 : rows, stride = jumok::stride_of<Element>(width);
          const int64_t room = jumok::padded(count);
          const Numbers queries = random.numbers(rows * width, count == 50 ? 4.0f : 1.0f);
          const auto keys = entries_of<Element>(random.numbers(heads * entries * width), width);
          const auto values = entries_of<Element>(random.numbers(heads * entries * width), width);
          const Numbers bias = random.numbers(rows * entries);
          std::vector<int32_t> visible(static_cast<size_t>(count));
          for (size_t i = 0; i < visible.size(); ++i) visible[i] = static_cast<int32_t>(i + i % 5);
          std::sort(visible.begin(), visible.end());
          Numbers mask(static_cast<size_t>(rows * room), -kInfinity);
          for (int64_t row = 0; row < rows; ++row)
            for (int64_t i = 0; i < count; ++i)
              if (shared ? (i + row) % 3 != 1 : i % 3 != 1) mask[static_cast<size_t>(row * room + i)] = 0;
          if (shared && rows == 3) std::fill_n(mask.begin(), room, -kInfinity);  // the first row sees nothing
          Numbers weights(static_cast<size_t>(jumok::kWorkspacePerEntry * room));
          Numbers out(static_cast<size_t>(rows * width));
          attend(jumok::Attention<Element>{rows,
                                           width,
                                           entries,
                                           queries.data(),
                                           width,
                                           keys.data(),
                                           values.data(),
                                           stride,
                                           shared ? 0 : entries * stride,
                                           count > 4 ? visible.data() : nullptr,
                                           count,
                                           mask.data(),
                                           shared ? room : 0,
                                           rows % 2 == 0 ? bias.data() : nullptr,
                                           entries,
                                           0.125f,
                                           weights.data(),
                                           out.data(),
                                           width,
                                           rows == 1});
          results.add(out);
        }
  return results;
}

Numbers special_numbers() {
  Random random(4);
  Numbers numbers{0, -0.0f, kInfinity, -kInfinity, kNan, 65504, 65519, 65520, 65536, 3e38f, -3e38f, 1e-45f, 0x1p-24f};
  for (int exponent = -30; exponent < 18; ++exponent)
    for (int i = 0; i < 40; ++i) numbers.push_back(std::ldexp(1 + 0x1p-12f * static_cast<float>(i), exponent));
  for (const float number : random.numbers(2001)) numbers.push_back(number * std::ldexp(1.0f, random.whole(-28, 16)));
  return numbers;
}

Results halves() {
  Results results;
  const Numbers numbers = special_numbers();
  results.add(entries_of<Half>(numbers, 1));
  // The attention of one entry is its value: all halves.
  constexpr int64_t kWidth = 64, kRows = 65536 / kWidth;
  std::vector<Half> every(65536);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<Half>(i);
  const std::vector<Half> keys(kWidth);
  const Numbers queries(kWidth);
  Numbers mask(16, -kInfinity);
  mask[0] = 0;
  Numbers weights(16 * jumok::kWorkspacePerEntry), out(kWidth);
  for (int64_t row = 0; row < kRows; ++row) {
    attend(jumok::Attention<Half>{1,
                                  kWidth,
                                  1,
                                  queries.data(),
                                  kWidth,
                                  keys.data(),
                                  every.data() + row * kWidth,
                                  kWidth,
                                  0,
                                  nullptr,
                                  1,
                                  mask.data(),
                                  0,
                                  nullptr,
                                  0,
                                  1,
                                  weights.data(),
                                  out.data(),
                                  kWidth,
                                  true});
    results.add(out);
  }
  return results;
}

Results quantized_rows() {
  Results results;
  Random random(5);
  const auto& kernels = *jumok::row_kernels();
  for (const int64_t count : {1, 7, 8, 16, 33, 64, 200}) {
    Numbers numbers = random.numbers(count * 6, 3);
    numbers[0] = 0, numbers[static_cast<size_t>(count)] = -70;
    const auto levels = entries_of<Int8>(numbers, count);
    results.add(levels);
    Numbers floats(static_cast<size_t>(count));
    kernels.from_int8(levels.data(), 0.37f, 22.5f, floats.data(), count);
    results.add(floats);
    for (const float special : {kNan, kInfinity, -kInfinity, 1e30f, -1e30f, 0.125f, -0.375f})
      numbers[static_cast<size_t>(random.whole(0, static_cast<int>(count) * 6 - 1))] = special;
    std::vector<uint8_t> quantized(numbers.size());
    kernels.quantize(numbers.data(), quantized.data(), count * 6, {0.25f, random.whole(0, 255)});
    results.add(quantized);
    for (int64_t row = 0; row < 6; ++row) {
      const float* from = numbers.data() + row * count;
      std::vector<uint8_t> levels_of_row(static_cast<size_t>(count));
      for (const bool rectified : {false, true}) {
        results.add(Numbers{kernels.quantize_row(from, count, rectified, levels_of_row.data(), {1.0f / 127, 128})});
        results.add(levels_of_row);
      }
    }
    // The scale of a head with a number that is none.
    const int64_t stride = jumok::stride_of<Int8>(count);
    for (const float special : {kNan, kInfinity}) {
      Numbers head = random.numbers(count * 4);
      head[static_cast<size_t>(count * 2)] = special;
      const auto made = entries_of<Int8>(head, count);
      Numbers scales(4);
      for (int64_t i = 0; i < 4; ++i)
        std::memcpy(&scales[static_cast<size_t>(i)], &made[static_cast<size_t>(i * stride + count)], 4);
      results.add(scales);
    }
  }
  return results;
}

Results norms() {
  Results results;
  Random random(6);
  for (const int64_t width : {1, 6, 16, 40, 64, 100, 512})
    for (const int64_t rows : {1, 2, 4, 7}) {
      const Numbers x = random.numbers(rows * width, 3), y = random.numbers(rows * width);
      const Numbers weight = random.numbers(width), bias = random.numbers(width);
      for (const bool in_order : {false, true}) {
        Numbers sum(x.size()), norm(x.size());
        std::vector<uint8_t> quantized(x.size()), of_norm(x.size());
        const jumok::Quantization quantization{0.0625f, 100};
        jumok::row_kernels()->add_norm({rows, width, x.data(), y.data(), weight.data(), bias.data(), 1e-5f, in_order,
                                        sum.data(), norm.data(), quantized.data(), quantization});
        jumok::row_kernels()->quantize(norm.data(), of_norm.data(), rows * width, quantization);
        if (quantized != of_norm) fail("a norm and its quantized numbers differ");
        results.add(sum);
        results.add(norm);
      }
    }
  return results;
}

Results recurrent_units() {
  Results results;
  Random random(8);
  for (const int64_t width : {1, 6, 16, 40, 64, 256})
    for (const float factor : {1.0f, 60.0f}) {
      Numbers forget = random.numbers(width, factor);
      const Numbers candidate = random.numbers(width), cell = random.numbers(width);
      Numbers next(cell.size()), output(cell.size());
      if (width > 6) forget[0] = kNan, forget[1] = kInfinity, forget[5] = -kInfinity;
      jumok::row_kernels()->advance_ssru(
          {width, forget.data(), candidate.data(), cell.data(), next.data(), output.data()});
      results.add(next);
      results.add(output);
    }
  return results;
}

Results log_sum_exps() {
  Results results;
  Random random(7);
  for (const int64_t count : {1, 3, 4, 9, 16, 35})
    for (const float factor : {1.0f, 60.0f}) {
      Numbers scores = random.numbers(count * jumok::kBlock, factor), maxima(static_cast<size_t>(count));
      scores[0] = -kInfinity;
      std::vector<const float*> blocks;
      for (int64_t i = 0; i < count; ++i) blocks.push_back(scores.data() + i * jumok::kBlock);
      const auto found = jumok::row_kernels()->log_sum_exp(blocks.data(), count, maxima.data());
      results.add(Numbers{found.max, found.log_sum});
      results.add(maxima);
      scores.back() = kNan;
      const auto undefined = jumok::row_kernels()->log_sum_exp(blocks.data(), count, maxima.data());
      results.add(Numbers{undefined.log_sum});
    }
  return results;
}

}  // namespace
