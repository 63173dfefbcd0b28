// ListedLogits: logits of listed tokens, from products in blocks of columns and each sentence's bias.
#include "operators/register.h"

#include <cstdint>
#include <vector>

#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Type;

// Of products [N, R, columns] and biases [B, N * columns]; the R / B rows of a sentence have its bias.
class ListedLogits {
 public:
  explicit ListedLogits(Settings&) {}

  void compute(Call& call) const {
    const Tensor products = call.input(0), biases = call.input(1);
    if (call.failed()) return;
    const int64_t blocks = products.sizes[0], rows = products.sizes[1], columns = products.sizes[2];
    const int64_t width = blocks * columns, sentences = biases.sizes[0];
    if (products.axes != 3 || biases.axes != 2 || biases.sizes[1] != width ||
        (sentences == 0 ? rows != 0 : rows % sentences != 0))
      return call.fail("the biases of listed tokens do not match their products");
    const Tensor logits = call.output(0, {rows, width});
    if (call.failed() || rows == 0) return;
    const int64_t beams = rows / sentences;
    call.parallel_for(rows, rows * width, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const float* bias = biases.as<float>() + row / beams * width;
        float* to = logits.as<float>() + row * width;
        for (int64_t block = 0; block < blocks; ++block, bias += columns, to += columns) {
          const float* product = products.as<float>() + (block * rows + row) * columns;
          for (int64_t i = 0; i < columns; ++i) to[i] = product[i] + bias[i];
        }
      }
    });
  }
};

}  // namespace

void add_listed_logits(std::vector<const ort::CustomOp*>& operators) {
  const Argument number{Type::kFloat};
  operators.push_back(new Operator<ListedLogits>("ListedLogits", {number, number}, {number}));
}

}  // namespace jumok
