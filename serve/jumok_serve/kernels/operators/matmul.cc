// Product: inputs times constant weights, with factors of rows, bias, activation or layer norm, and quantization.
// QuantizeRows: inputs of products with a scale for each row.
#include "operators/register.h"

#include <algorithm>
#include <array>
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

// Products of the same inputs with several matrices, one output each. Quantized rows may have factors, the last input.
template <typename Number, int kParts, bool kQuantized>
class Matmul {
 public:
  explicit Matmul(Settings& settings) : operands_(settings) {
    if constexpr (kQuantized) operands_.quantize_results(settings.quantization<Quantization>(kLevels, kLevels + 1));
  }

  void compute(Call& call) const {
    using Result = std::conditional_t<kQuantized, uint8_t, float>;
    const Tensor numbers = call.input(0);
    const int64_t rows = operands_.rows(call, numbers);
    const float* const factors = operands_.factors(call, numbers, kFactors);
    std::array<Result*, kParts> out;
    for (size_t i = 0; i < kParts && !call.failed(); ++i) {
      int64_t sizes[kMaxAxes];
      std::copy(numbers.sizes, numbers.sizes + numbers.axes - 1, sizes);
      sizes[numbers.axes - 1] = operands_.columns(i);
      out[i] = call.output(i, sizes, numbers.axes).template as<Result>();
    }
    if (!call.failed()) operands_.multiply(call, numbers, rows, out, factors);
  }

 private:
  static constexpr size_t kLevels = MatmulOperands<Number, kParts>::kInputs, kFactors = kLevels + (kQuantized ? 2 : 0);

  MatmulOperands<Number, kParts> operands_;
};

// A product, a residual added to it, and the layer norm of the sum. Quantized rows may have factors, the last input.
template <typename Number, bool kQuantized>
class MatmulAddNorm {
 public:
  explicit MatmulAddNorm(Settings& settings) : operands_(settings), norm_(settings, kNorm) {
    if (!settings.failed() && !norm_.fits(operands_.columns(0)))
      settings.fail("a product does not fit the weights of its norm");
  }

  void compute(Call& call) const {
    const Tensor numbers = call.input(0), added = call.input(kNorm - 1);
    const int64_t rows = operands_.rows(call, numbers);
    const float* const factors = operands_.factors(call, numbers, kFactors);
    if (!call.failed() && added.count() != rows * operands_.columns(0))
      call.fail("the residual does not match the product");
    if (call.failed()) return;
    const auto results = norm_.results(call, added);
    if (call.failed() || rows == 0) return;
    operands_.multiply(call, numbers, rows, std::array<float*, 1>{results.sums}, factors);
    norm_.compute(call, rows, added.as<float>(), results.sums, rows, results);
  }

 private:
  static constexpr size_t kNorm =
      MatmulOperands<Number, 1>::kInputs + 1;  // first input of the norm, after the residual
  static constexpr size_t kFactors = kNorm + (kQuantized ? 4 : 2);

  MatmulOperands<Number, 1> operands_;
  LayerNorm<kQuantized> norm_;
};

// Quantized values of rows [.., width] that are divided by their largest magnitudes; and these, [.., 1].
class QuantizeRows {
 public:
  explicit QuantizeRows(Settings& settings)
      : quantization_(settings.quantization<Quantization>(1, 2)), rectified_(settings.get<int64_t>("rectified") != 0) {}

  void compute(Call& call) const {
    const Tensor numbers = call.input(0);
    if (call.failed()) return;
    const int64_t width = numbers.axes == 0 ? 0 : numbers.sizes[numbers.axes - 1];
    if (width == 0) return call.fail("rows without numbers cannot be quantized");
    int64_t sizes[kMaxAxes];
    std::copy(numbers.sizes, numbers.sizes + numbers.axes, sizes);
    const Tensor quantized = call.output(0, sizes, numbers.axes);
    sizes[numbers.axes - 1] = 1;
    const Tensor largest = call.output(1, sizes, numbers.axes);
    if (call.failed()) return;
    const int64_t rows = numbers.count() / width;
    call.parallel_for(rows, 2 * numbers.count(), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row)
        largest.as<float>()[row] = row_kernels()->quantize_row(numbers.as<float>() + row * width, width, rectified_,
                                                               quantized.as<uint8_t>() + row * width, quantization_);
    });
  }

 private:
  Quantization quantization_;
  bool rectified_;
};

// Graphs of older bundles have no factors: they multiply after the product.
template <typename Number>
void add_factors(std::vector<Argument>& inputs) {
  if (std::is_same_v<Number, uint8_t>) inputs.push_back({Type::kFloat, Presence::kOptional});
}

template <typename Number, int kParts, bool kQuantized>
void add(std::vector<const ort::CustomOp*>& operators, const std::string& name) {
  std::vector<Argument> inputs = operand_inputs<Number>(kParts);
  if (kQuantized) inputs.insert(inputs.end(), {{Type::kFloat}, {Type::kUint8}});
  add_factors<Number>(inputs);
  const std::vector<Argument> outputs(kParts, {kQuantized ? Type::kUint8 : Type::kFloat});
  operators.push_back(new Operator<Matmul<Number, kParts, kQuantized>>(name, inputs, outputs));
}

template <typename Number, bool kQuantized>
void add_with_norm(std::vector<const ort::CustomOp*>& operators, const std::string& name) {
  const Argument number{Type::kFloat}, wanted{Type::kFloat, Presence::kOptional};
  std::vector<Argument> inputs = operand_inputs<Number>(1), outputs{wanted, wanted};
  inputs.insert(inputs.end(), {number, number, number});
  if (kQuantized) {
    inputs.insert(inputs.end(), {number, {Type::kUint8}});
    outputs.push_back({Type::kUint8});
  }
  add_factors<Number>(inputs);
  operators.push_back(new Operator<MatmulAddNorm<Number, kQuantized>>(name, inputs, outputs));
}

}  // namespace

void add_matmul(std::vector<const ort::CustomOp*>& operators) {
  add<uint8_t, 1, false>(operators, "Product");
  add<uint8_t, 1, true>(operators, "ProductQuantized");
  add<uint8_t, 3, false>(operators, "ThreeProducts");
  add_with_norm<uint8_t, false>(operators, "ProductAddNorm");
  add_with_norm<uint8_t, true>(operators, "ProductAddNormQuantized");
  const Argument number{Type::kFloat}, level{Type::kUint8};
  operators.push_back(new Operator<QuantizeRows>("QuantizeRows", {number, number, level}, {level, number}));
  add<float, 1, false>(operators, "FloatProduct");
  add<float, 3, false>(operators, "ThreeFloatProducts");
  add_with_norm<float, false>(operators, "FloatProductAddNorm");
  add_with_norm<float, true>(operators, "FloatProductAddNormQuantized");
}

}  // namespace jumok
