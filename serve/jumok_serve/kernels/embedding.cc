// Int8Embedding: what tokens are embedded as, of rows in 8 bits with a scale each, times a factor.
#include "embedding.h"

#include <algorithm>
#include <atomic>

#include "operator.h"
#include "rows.h"

namespace jumok {
namespace {

using ort::Type;

class Int8Embedding {
 public:
  explicit Int8Embedding(Settings& settings) : factor_(settings.get<float>("factor")) {}

  void compute(Call& call) const {
    const Tensor levels = call.input(0), scales = call.input(1), tokens = call.input(2);
    if (call.failed()) return;
    if (levels.axes != 2 || scales.count() != levels.sizes[0] || tokens.axes >= static_cast<size_t>(kMostAxes))
      return call.fail("an embedding's rows, scales and tokens do not fit each other");
    const int64_t vocabulary = levels.sizes[0], width = levels.sizes[1], count = tokens.count();
    int64_t sizes[kMostAxes];
    std::copy(tokens.sizes, tokens.sizes + tokens.axes, sizes);
    sizes[tokens.axes] = width;
    const Tensor embedded = call.output(0, sizes, tokens.axes + 1);
    if (call.failed()) return;
    std::atomic<bool> unknown{false};
    call.divide(count, count * width, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t token = tokens.as<int64_t>()[i];
        if (token < 0 || token >= vocabulary)
          unknown = true;
        else
          rows()->from_int8(levels.as<Int8>() + token * width, scales.as<float>()[token], factor_,
                            embedded.as<float>() + i * width, width);
      }
    });
    if (unknown) call.fail("a token is none of the vocabulary's");
  }

 private:
  float factor_;
};

}  // namespace

void add_embedding(std::vector<const ort::CustomOp*>& operators) {
  operators.push_back(new Operator<Int8Embedding>("Int8Embedding", {{Type::kInt8}, {Type::kFloat}, {Type::kInt64}},
                                                  {{Type::kFloat}}));
}

}  // namespace jumok
