// AddNorm: the residual connection, layer normalisation, and levels of its result.
#include "norm.h"

#include "operator.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

// Of two tensors with as many rows; or of sentences [B, S, width] and a table, whose first S rows are added to each.
template <bool kQuantized>
class AddNormOf {
 public:
  explicit AddNormOf(Settings& settings) : norm_(settings, 2) {}

  void compute(Call& call) const {
    const Tensor x = call.input(0), y = call.input(1);
    if (call.failed()) return;
    const int64_t width = x.axes == 0 ? 0 : x.sizes[x.axes - 1];
    const bool of_table = x.axes == 3 && y.axes == 2 && y.sizes[1] == width && y.sizes[0] >= x.sizes[1];
    if ((!of_table && x.count() != y.count()) || !norm_.fits(width))
      return call.fail("what is added and normalised does not fit its weights");
    const auto results = norm_.results(call, x);
    if (call.failed() || x.count() == 0) return;
    const int64_t rows = x.count() / width;
    norm_.compute(call, rows, x.as<float>(), y.as<float>(), of_table ? x.sizes[1] : rows, results);
  }

 private:
  Norm<kQuantized> norm_;
};

}  // namespace

void add_norm(std::vector<const ort::CustomOp*>& operators) {
  const Slot number{Type::kFloat}, wanted{Type::kFloat, Presence::kOptional};
  const std::vector<Slot> inputs(4, number);
  operators.push_back(new Operator<AddNormOf<false>>("AddNorm", inputs, {wanted, wanted}));
  std::vector<Slot> quantized = inputs;
  quantized.insert(quantized.end(), {{Type::kFloat}, {Type::kUint8}});
  operators.push_back(new Operator<AddNormOf<true>>("AddNormQuantized", quantized, {wanted, wanted, {Type::kUint8}}));
}

}  // namespace jumok
