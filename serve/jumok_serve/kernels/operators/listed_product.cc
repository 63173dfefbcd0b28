// ListedWeights and ListedProduct: int8 weights of listed tokens, packed when the list changes, and their logits.
#include "operators/register.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "isa/gemm.h"
#include "operators/matmul_operands.h"
#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Type;

constexpr int64_t kChunk = 4;  // weights of a column that lie together

// Of constant weights [V, depth] those of listed tokens [U], as panels that kernels read, in blocks [U / columns,
// depth, columns]; and their sums over the depth.
class ListedWeights {
 public:
  explicit ListedWeights(Settings& settings)
      : columns_(settings.get<int64_t>("columns")), weights_(settings.constant(0)), depth_(weights_.sizes[1]) {
    if (!settings.failed() &&
        (columns_ < 1 || columns_ % gemm_kernels().columns != 0 || gemm_kernels().chunk != kChunk ||
         weights_.axes != 2 || depth_ < 1 || depth_ % kChunk != 0))
      settings.fail("weights of listed tokens and their blocks do not fit each other in these kernels");
  }

  void compute(Call& call) const {
    const Tensor tokens = call.input(1);
    if (call.failed()) return;
    const int64_t count = tokens.count(), vocabulary = weights_.sizes[0];
    const auto* listed = tokens.as<int64_t>();
    if (count % columns_ != 0 ||
        std::any_of(listed, listed + count, [&](int64_t token) { return token < 0 || token >= vocabulary; }))
      return call.fail("listed tokens do not fit the weights or their blocks");
    const Tensor packed = call.output(0, {count / columns_, depth_, columns_}), sums = call.output(1, {count});
    if (call.failed()) return;
    const int64_t width = gemm_kernels().columns;
    call.parallel_for(count / width, count * depth_ / kChunk, [&](int64_t first, int64_t last) {
      std::transform(listed + first * width, listed + last * width, sums.as<int32_t>() + first * width,
                     [this](int64_t token) { return sum_of(weights_.as<int8_t>() + token * depth_); });
      for (int64_t panel = first; panel < last; ++panel) {
        int8_t* to = packed.as<int8_t>() + panel * width * depth_;
        gemm_kernels().overflow_groups ? pack<kChunk / 2>(listed + panel * width, width, to)
                                       : pack<kChunk>(listed + panel * width, width, to);
      }
    });
  }

 private:
  int32_t sum_of(const int8_t* weights) const { return std::accumulate(weights, weights + depth_, 0); }

  // Packs the panel of `width` tokens in whole chunks; or in the halves of chunks that kernels read as int16, without
  // overflow groups.
  template <int64_t kSide>
  void pack(const int64_t* tokens, int64_t width, int8_t* to) const {
    for (int64_t row = 0; row < depth_; row += kSide)
      for (int64_t column = 0; column < width; ++column, to += kSide)
        std::memcpy(to, weights_.as<int8_t>() + tokens[column] * depth_ + row, kSide);
  }

  const int64_t columns_;
  const Tensor weights_;
  const int64_t depth_;
};

// Logits [R, U] of inputs [R, depth] and weights of `ListedWeights`, with scales [U] and each sentence's bias [B, U];
// the R / B rows of a sentence have its bias.
class ListedProduct {
 public:
  explicit ListedProduct(Settings& settings) : inputs_(settings.quantization<Quantization>(1, 2)) {}

  void compute(Call& call) const {
    const Tensor numbers = call.input(0), weights = call.input(3), scales = call.input(4), sums = call.input(5),
                 biases = call.input(6);
    if (call.failed()) return;
    const int64_t width = scales.count(), depth = weights.sizes[1], columns = gemm_kernels().columns;
    const int64_t sentences = biases.sizes[0], rows = depth == 0 ? 0 : numbers.count() / depth;
    if (weights.axes != 3 || numbers.axes < 1 || numbers.sizes[numbers.axes - 1] != depth || depth % kChunk != 0 ||
        width % columns != 0 || weights.count() != width * depth || sums.count() != width || biases.axes != 2 ||
        biases.sizes[1] != width || (sentences == 0 ? rows != 0 : rows % sentences != 0))
      return call.fail("inputs, weights and biases of listed tokens do not match");
    const Tensor logits = call.output(0, {rows, width});
    if (call.failed() || rows == 0) return;
    PanelGemm<uint8_t> all{};
    all.rows = rows;
    all.depth = depth;
    all.scale = inputs_.scale;
    all.zero_point = inputs_.zero_point;
    all.stride = width;
    all.columns = columns;
    const float* const bias = biases.as<float>();
    multiply_panels(call, all, numbers.as<uint8_t>(), width / columns, width * depth, gemm_kernels().overflow_groups,
                    [&](PanelGemm<uint8_t>& own, int64_t row, int64_t panel) {
                      const int64_t column = panel * columns;
                      own.weights = weights.as<int8_t>() + column * depth;
                      own.weight_sums = sums.as<int32_t>() + column;
                      own.scales = scales.as<float>() + column;
                      own.bias = sentences == 1 ? bias + column : nullptr;
                      own.out = logits.as<float>() + row * width + column;
                      gemm_kernels().multiply(own);
                    });
    if (call.failed() || sentences == 1) return;
    call.parallel_for(rows, rows * width, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const float* own = bias + row / (rows / sentences) * width;
        float* to = logits.as<float>() + row * width;
        for (int64_t i = 0; i < width; ++i) to[i] += own[i];
      }
    });
  }

 private:
  const Quantization inputs_;
};

}  // namespace

void add_listed_product(std::vector<const ort::CustomOp*>& operators) {
  const Argument number{Type::kFloat}, weight{Type::kInt8}, sum{Type::kInt32};
  operators.push_back(new Operator<ListedWeights>("ListedWeights", {weight, {Type::kInt64}}, {weight, sum}));
  operators.push_back(new Operator<ListedProduct>(
      "ListedProduct", {{Type::kUint8}, number, {Type::kUint8}, weight, number, sum, number}, {number}));
}

}  // namespace jumok
