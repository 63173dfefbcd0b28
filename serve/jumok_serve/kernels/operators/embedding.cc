// FloatEmbedding and Int8Embedding: token embeddings times a factor; int8 rows have a scale each. Position embeddings
// may be added, and the sums quantized.
#include "operators/register.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "isa/row.h"
#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

// Inputs are the table, the scales of an int8 one, and token ids; optionally a table of position embeddings with the
// position of each token, and a tensor whose first axis is the first of the outputs: tokens [n * K] become [n, K,
// width]. Outputs are the sums, and with a scale and a zero point their quantized values.
template <typename Element, bool kQuantized>
class Embedding {
 public:
  static constexpr bool kScaled = std::is_same_v<Element, Int8>;
  static constexpr size_t kTokens = kScaled ? 2 : 1, kOptional = kTokens + 1, kQuantization = kOptional + 3;

  explicit Embedding(Settings& settings) : factor_(settings.get<float>("factor")) {
    if constexpr (kQuantized) quantization_ = settings.quantization<Quantization>(kQuantization, kQuantization + 1);
  }

  void compute(Call& call) const {
    const Tensor table = call.input(0), scales = kScaled ? call.input(1) : Tensor{}, tokens = call.input(kTokens);
    const Tensor position_table = call.input(kOptional), positions = call.input(kOptional + 1);
    const Tensor grouped = call.input(kOptional + 2);
    if (call.failed()) return;
    if (table.axes != 2 || (kScaled && scales.count() != table.sizes[0]) ||
        tokens.axes >= static_cast<size_t>(kMaxAxes))
      return call.fail("an embedding's rows, scales and tokens do not fit each other");
    const int64_t vocabulary = table.sizes[0], width = table.sizes[1], count = tokens.count();
    if (bool(position_table) != bool(positions) ||
        (positions && (positions.count() != count || position_table.axes != 2 || position_table.sizes[1] != width)))
      return call.fail("position embeddings do not fit the tokens and their embeddings");
    int64_t sizes[kMaxAxes];
    size_t axes = tokens.axes;
    std::copy(tokens.sizes, tokens.sizes + axes, sizes);
    if (grouped) {
      const int64_t groups = grouped.axes == 0 ? 0 : grouped.sizes[0];
      if (groups == 0 || count % groups != 0) return call.fail("tokens cannot be divided into as many groups");
      axes = 2;
      sizes[0] = groups;
      sizes[1] = count / groups;
    }
    sizes[axes] = width;
    const Tensor sums = call.output(0, sizes, axes + 1);
    const Tensor quantized = kQuantized ? call.output(1, sizes, axes + 1) : Tensor{};
    if (call.failed()) return;
    std::atomic<bool> out_of_range{false};
    call.parallel_for(count, count * width, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t token = tokens.as<int64_t>()[i], position = positions ? positions.as<int64_t>()[i] : 0;
        if (token < 0 || token >= vocabulary || position < 0 || (positions && position >= position_table.sizes[0])) {
          out_of_range = true;
          continue;
        }
        float* const sum = sums.as<float>() + i * width;
        embed(table.as<Element>() + token * width, kScaled ? scales.as<float>()[token] : 1.0f, sum, width);
        if (positions) {
          const float* const added = position_table.as<float>() + position * width;
          std::transform(sum, sum + width, added, sum, [](float number, float other) { return number + other; });
        }
        if constexpr (kQuantized)
          row_kernels()->quantize(sum, quantized.as<uint8_t>() + i * width, width, quantization_);
      }
    });
    if (out_of_range)
      call.fail("a token id is outside of the vocabulary, or a position outside of the table of positions");
  }

 private:
  void embed(const Int8* row, float scale, float* to, int64_t width) const {
    row_kernels()->from_int8(row, scale, factor_, to, width);
  }
  void embed(const float* row, float, float* to, int64_t width) const {
    std::transform(row, row + width, to, [this](float number) { return number * factor_; });
  }

  float factor_;
  Quantization quantization_{};
};

template <typename Element, bool kQuantized>
void add(std::vector<const ort::CustomOp*>& operators, const char* name) {
  const Argument number{Type::kFloat}, index{Type::kInt64};
  std::vector<Argument> inputs{number, index}, outputs{number};
  if (Embedding<Element, kQuantized>::kScaled) inputs = {{Type::kInt8}, number, index};
  inputs.insert(inputs.end(), {{Type::kFloat, Presence::kOptional}, {Type::kInt64, Presence::kOptional}});
  inputs.push_back({Type::kFloat, Presence::kOptional});
  if (kQuantized) {
    inputs.insert(inputs.end(), {number, {Type::kUint8}});
    outputs.push_back({Type::kUint8});
  }
  operators.push_back(new Operator<Embedding<Element, kQuantized>>(name, inputs, outputs));
}

}  // namespace

void add_embedding(std::vector<const ort::CustomOp*>& operators) {
  add<float, false>(operators, "FloatEmbedding");
  add<float, true>(operators, "FloatEmbeddingQuantized");
  add<Int8, false>(operators, "Int8Embedding");
  add<Int8, true>(operators, "Int8EmbeddingQuantized");
}

}  // namespace jumok
