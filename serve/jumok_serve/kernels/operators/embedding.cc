// FloatEmbedding and Int8Embedding: token embeddings times a factor; int8 rows have a scale each.
#include "operators/register.h"

#include <algorithm>
#include <atomic>
#include <type_traits>

#include "isa/row.h"
#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Type;

template <typename Element>
class Embedding {
 public:
  explicit Embedding(Settings& settings) : factor_(settings.get<float>("factor")) {}

  void compute(Call& call) const {
    const Tensor table = call.input(0), scales = kScaled ? call.input(1) : Tensor{};
    const Tensor tokens = call.input(kScaled ? 2 : 1);
    if (call.failed()) return;
    if (table.axes != 2 || (kScaled && scales.count() != table.sizes[0]) ||
        tokens.axes >= static_cast<size_t>(kMaxAxes))
      return call.fail("an embedding's rows, scales and tokens do not fit each other");
    const int64_t vocabulary = table.sizes[0], width = table.sizes[1], count = tokens.count();
    int64_t sizes[kMaxAxes];
    std::copy(tokens.sizes, tokens.sizes + tokens.axes, sizes);
    sizes[tokens.axes] = width;
    const Tensor embedded = call.output(0, sizes, tokens.axes + 1);
    if (call.failed()) return;
    std::atomic<bool> unknown{false};
    call.parallel_for(count, count * width, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t token = tokens.as<int64_t>()[i];
        if (token < 0 || token >= vocabulary)
          unknown = true;
        else
          embed(table.as<Element>() + token * width, kScaled ? scales.as<float>()[token] : 1.0f,
                embedded.as<float>() + i * width, width);
      }
    });
    if (unknown) call.fail("a token id is outside of the vocabulary");
  }

 private:
  static constexpr bool kScaled = std::is_same_v<Element, Int8>;

  void embed(const Int8* row, float scale, float* to, int64_t width) const {
    row_kernels()->from_int8(row, scale, factor_, to, width);
  }
  void embed(const float* row, float, float* to, int64_t width) const {
    std::transform(row, row + width, to, [this](float number) { return number * factor_; });
  }

  float factor_;
};

}  // namespace

void add_embedding(std::vector<const ort::CustomOp*>& operators) {
  const Argument number{Type::kFloat}, token{Type::kInt64};
  operators.push_back(new Operator<Embedding<float>>("FloatEmbedding", {number, token}, {number}));
  operators.push_back(new Operator<Embedding<Int8>>("Int8Embedding", {{Type::kInt8}, number, token}, {number}));
}

}  // namespace jumok
