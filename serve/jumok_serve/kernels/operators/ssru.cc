// SSRU: a layer's recurrent unit, from its two products to the layer norm after the residual.
#include "operators/register.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "isa/row.h"
#include "operators/layer_norm.h"
#include "operators/matmul_operands.h"
#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

// Of x [.., depth] the candidate x . W and the forget gate f = sigmoid(x . V + b); from the state [P, width] of each
// row's parent the next state c = f * state[parent] + (1 - f) * candidate; and the norm of relu(c) + residual.
template <typename Number, bool kQuantized>
class SsruAddNorm {
 public:
  explicit SsruAddNorm(Settings& settings) : operands_(settings), norm_(settings, kNorm) {
    if (!settings.failed() && (operands_.columns(0) != operands_.columns(1) || !norm_.fits(operands_.columns(0))))
      settings.fail("a recurrent unit's products do not fit each other or the weights of its norm");
  }

  void compute(Call& call) const {
    const Tensor numbers = call.input(0), added = call.input(kAdded), state = call.input(kAdded + 1),
                 parents = call.input(kAdded + 2);
    const int64_t rows = operands_.rows(call, numbers), width = operands_.columns(0);
    if (call.failed()) return;
    if (added.count() != rows * width || parents.count() != rows || state.axes != 2 || state.sizes[1] != width)
      return call.fail("residual, state and parents of a recurrent unit do not match its products");
    const auto* parent = parents.as<int64_t>();
    if (std::any_of(parent, parent + rows, [&](int64_t row) { return row < 0 || row >= state.sizes[0]; }))
      return call.fail("a parent is outside of the state");
    const auto results = norm_.results(call, added);
    const Tensor next = call.output(kQuantized ? 3 : 2, {rows, width});
    if (call.failed() || rows == 0) return;
    static thread_local std::vector<float> forget;
    forget.resize(std::max(forget.size(), static_cast<size_t>(rows * width)));
    float* const gates = forget.data();  // of this thread, for the others too
    operands_.multiply(call, numbers, rows, std::array<float*, 2>{next.as<float>(), gates});
    if (call.failed()) return;
    call.parallel_for(rows, rows * width * kWorkPerNumber, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        float* const own = next.as<float>() + row * width;
        row_kernels()->advance_ssru({width, gates + row * width, own, state.as<float>() + parent[row] * width, own,
                                     results.sums + row * width});
      }
    });
    norm_.compute(call, rows, added.as<float>(), results.sums, rows, results);
  }

 private:
  using Operands = MatmulOperands<Number, 2>;
  static constexpr size_t kAdded = Operands::kInputs, kNorm = kAdded + 3;
  static constexpr int64_t kWorkPerNumber = 4;  // the exponential takes as long as reading some numbers

  Operands operands_;
  LayerNorm<kQuantized> norm_;
};

template <typename Number, bool kQuantized>
void add(std::vector<const ort::CustomOp*>& operators, const std::string& name) {
  const Argument number{Type::kFloat}, wanted{Type::kFloat, Presence::kOptional};
  std::vector<Argument> inputs = operand_inputs<Number>(2), outputs{wanted, wanted};
  inputs.insert(inputs.end(), {number, number, {Type::kInt64}, number, number});
  if (kQuantized) {
    inputs.insert(inputs.end(), {number, {Type::kUint8}});
    outputs.push_back({Type::kUint8});
  }
  outputs.push_back(number);
  operators.push_back(new Operator<SsruAddNorm<Number, kQuantized>>(name, inputs, outputs));
}

}  // namespace

void add_ssru(std::vector<const ort::CustomOp*>& operators) {
  add<uint8_t, false>(operators, "SsruAddNorm");
  add<uint8_t, true>(operators, "SsruAddNormQuantized");
  add<float, false>(operators, "FloatSsruAddNorm");
  add<float, true>(operators, "FloatSsruAddNormQuantized");
}

}  // namespace jumok
