// AddNorm: residual connection, layer normalization, and the quantized result.
#include "operators/layer_norm.h"

#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

// Adds tensors of equal size, or to sentences [B, S, width] the first S rows of a table.
template <bool kQuantized>
class AddNormKernel {
 public:
  explicit AddNormKernel(Settings& settings) : norm_(settings, 2) {}

  void compute(Call& call) const {
    const Tensor x = call.input(0), y = call.input(1);
    if (call.failed()) return;
    const int64_t width = x.axes == 0 ? 0 : x.sizes[x.axes - 1];
    const bool of_table = x.axes == 3 && y.axes == 2 && y.sizes[1] == width && y.sizes[0] >= x.sizes[1];
    if ((!of_table && x.count() != y.count()) || !norm_.fits(width))
      return call.fail("the inputs of a layer norm do not match its weights");
    const auto results = norm_.results(call, x);
    if (call.failed() || x.count() == 0) return;
    const int64_t rows = x.count() / width;
    norm_.compute(call, rows, x.as<float>(), y.as<float>(), of_table ? x.sizes[1] : rows, results);
  }

 private:
  LayerNorm<kQuantized> norm_;
};

}  // namespace

void add_layer_norm(std::vector<const ort::CustomOp*>& operators) {
  const Argument number{Type::kFloat}, wanted{Type::kFloat, Presence::kOptional};
  const std::vector<Argument> inputs(4, number);
  operators.push_back(new Operator<AddNormKernel<false>>("AddNorm", inputs, {wanted, wanted}));
  std::vector<Argument> quantized = inputs;
  quantized.insert(quantized.end(), {{Type::kFloat}, {Type::kUint8}});
  operators.push_back(
      new Operator<AddNormKernel<true>>("AddNormQuantized", quantized, {wanted, wanted, {Type::kUint8}}));
}

}  // namespace jumok
