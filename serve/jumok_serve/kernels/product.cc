// Product: levels or floats times constant weights, a bias, an activation or a norm, and levels of the result.
#include "product.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "factor.h"
#include "operator.h"
#include "rows.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

// Several products of the same numbers, one output each.
template <typename Number, int kParts, bool kQuantized>
class Product {
 public:
  explicit Product(Settings& settings) : factor_(settings) {
    constexpr size_t kLevels = Factor<Number, kParts>::kInputs;
    if constexpr (kQuantized) factor_.round(settings.levels<Levels>(kLevels, kLevels + 1));
  }

  void compute(Call& call) const {
    using Result = std::conditional_t<kQuantized, uint8_t, float>;
    const Tensor numbers = call.input(0);
    const int64_t rows = factor_.rows(call, numbers);
    std::array<Result*, kParts> out;
    for (size_t i = 0; i < kParts && !call.failed(); ++i) {
      int64_t sizes[kMostAxes];
      std::copy(numbers.sizes, numbers.sizes + numbers.axes - 1, sizes);
      sizes[numbers.axes - 1] = factor_.columns(i);
      out[i] = call.output(i, sizes, numbers.axes).template as<Result>();
    }
    if (!call.failed()) factor_.multiply(call, numbers, rows, out);
  }

 private:
  Factor<Number, kParts> factor_;
};

// A product, what is added to it, and the norm of that.
template <typename Number, bool kQuantized>
class ProductAddNorm {
 public:
  explicit ProductAddNorm(Settings& settings)
      : factor_(settings), weight_(settings.constant(kNorm)), bias_(settings.constant(kNorm + 1)),
        epsilon_(settings.get<float>("epsilon")) {
    if constexpr (kQuantized) levels_ = settings.levels<Levels>(kNorm + 2, kNorm + 3);
    if (!settings.failed() && (weight_.count() != factor_.columns(0) || bias_.count() != factor_.columns(0)))
      settings.fail("a product does not fit the weights of its norm");
  }

  void compute(Call& call) const {
    const Tensor numbers = call.input(0), added = call.input(kNorm - 1);
    const int64_t rows = factor_.rows(call, numbers), width = factor_.columns(0);
    if (!call.failed() && added.count() != rows * width) call.fail("what is added does not fit the product");
    if (call.failed()) return;
    const Tensor sum = call.output(0, added.sizes, added.axes), norm = call.output(1, added.sizes, added.axes);
    const Tensor quantized = kQuantized ? call.output(2, added.sizes, added.axes) : Tensor{};
    if (call.failed()) return;
    // The product lies where what is made of it will; the last layer may give nothing but levels.
    const std::unique_ptr<float[]> own_product(sum || norm ? nullptr : new float[static_cast<size_t>(rows * width)]);
    float* const product = sum ? sum.as<float>() : norm ? norm.as<float>() : own_product.get();
    factor_.multiply(call, numbers, rows, std::array<float*, 1>{product});
    call.divide(rows, rows * width, [&](int64_t first, int64_t last) {
      static thread_local std::vector<float> own;
      own.resize(static_cast<size_t>(width));
      for (int64_t row = first; row < last; ++row) {
        const int64_t place = row * width;
        float* normal = norm ? norm.as<float>() + place : own.data();
        jumok::rows()->add_norm(added.as<float>() + place, product + place, weight_.as<float>(), bias_.as<float>(),
                                epsilon_, product + place, normal, width);
        if constexpr (kQuantized)
          jumok::rows()->quantize(normal, quantized.as<uint8_t>() + place, width, levels_);
      }
    });
  }

 private:
  static constexpr size_t kNorm = Factor<Number, 1>::kInputs + 1;  // the first input of the norm, behind what is added

  Factor<Number, 1> factor_;
  Tensor weight_, bias_;
  float epsilon_;
  Levels levels_;
};

template <typename Number>
std::vector<Slot> factor_inputs(int parts) {
  const Slot number{Type::kFloat}, optional{Type::kFloat, Presence::kOptional};
  std::vector<Slot> inputs{number};
  if (std::is_same_v<Number, uint8_t>) inputs = {{Type::kUint8}, number, {Type::kUint8}};
  for (int i = 0; i < parts; ++i)
    if (std::is_same_v<Number, uint8_t>)
      inputs.insert(inputs.end(), {{Type::kInt8}, number, optional});
    else
      inputs.insert(inputs.end(), {number, optional});
  return inputs;
}

template <typename Number, int kParts, bool kQuantized>
void add(std::vector<const ort::CustomOp*>& operators, const std::string& name) {
  std::vector<Slot> inputs = factor_inputs<Number>(kParts);
  if (kQuantized) inputs.insert(inputs.end(), {{Type::kFloat}, {Type::kUint8}});
  const std::vector<Slot> outputs(kParts, {kQuantized ? Type::kUint8 : Type::kFloat});
  operators.push_back(new Operator<Product<Number, kParts, kQuantized>>(name, inputs, outputs));
}

template <typename Number, bool kQuantized>
void add_with_norm(std::vector<const ort::CustomOp*>& operators, const std::string& name) {
  const Slot number{Type::kFloat}, wanted{Type::kFloat, Presence::kOptional};
  std::vector<Slot> inputs = factor_inputs<Number>(1), outputs{wanted, wanted};
  inputs.insert(inputs.end(), {number, number, number});
  if (kQuantized) {
    inputs.insert(inputs.end(), {number, {Type::kUint8}});
    outputs.push_back({Type::kUint8});
  }
  operators.push_back(new Operator<ProductAddNorm<Number, kQuantized>>(name, inputs, outputs));
}

}  // namespace

void add_products(std::vector<const ort::CustomOp*>& operators) {
  add<uint8_t, 1, false>(operators, "Product");
  add<uint8_t, 1, true>(operators, "ProductQuantized");
  add<uint8_t, 3, false>(operators, "ThreeProducts");
  add_with_norm<uint8_t, false>(operators, "ProductAddNorm");
  add_with_norm<uint8_t, true>(operators, "ProductAddNormQuantized");
  add<float, 1, false>(operators, "FloatProduct");
  add<float, 3, false>(operators, "ThreeFloatProducts");
  add_with_norm<float, false>(operators, "FloatProductAddNorm");
  add_with_norm<float, true>(operators, "FloatProductAddNormQuantized");
}

}  // namespace jumok
