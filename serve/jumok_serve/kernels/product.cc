// Product: levels times constant weights in 8 bits, a bias, an activation, and levels of the result.
#include "product.h"

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string>

#include "operator.h"
#include "packed.h"
#include "products.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

// Several products of the same levels, one output each.
template <int kParts, bool kQuantized>
class Product {
 public:
  explicit Product(Settings& settings)
      : transposed_(settings.get<int64_t>("transposed") != 0),
        activation_(static_cast<Activation>(settings.get<int64_t>("activation"))) {}

  void compute(Call& call) const {
    const Tensor levels = call.input(0), scale = call.input(1), zero_point = call.input(2);
    Part parts[kParts];
    for (size_t i = 0; i < kParts; ++i)
      parts[i] = {call.input(3 + 3 * i), call.input(4 + 3 * i), call.input(5 + 3 * i), {}};
    if (call.failed()) return;
    const int64_t depth = levels.axes == 0 ? 0 : levels.sizes[levels.axes - 1];
    for (const Part& part : parts)
      if (part.weights.axes != 2 || part.weights.sizes[transposed_ ? 1 : 0] != depth || depth == 0 ||
          part.scales.count() != columns(part) || (part.bias && part.bias.count() != columns(part)))
        return call.fail("levels, weights, scales and biases of a product do not fit each other");
    PanelProduct all{};
    all.depth = depth;
    all.scale = *scale.as<float>();
    all.zero_point = *zero_point.as<uint8_t>();
    all.activation = activation_;
    if constexpr (kQuantized) all.rounding = {*call.input(3 + 3 * kParts).template as<float>(),
                                              *call.input(4 + 3 * kParts).template as<uint8_t>()};
    if (!pack(call, parts, depth)) return;
    int64_t panels = 0, work = 0;
    for (size_t i = 0; i < kParts; ++i) {
      int64_t sizes[kMostAxes];
      std::copy(levels.sizes, levels.sizes + levels.axes - 1, sizes);
      sizes[levels.axes - 1] = columns(parts[i]);
      parts[i].out = call.output(i, sizes, levels.axes);
      panels += packed_[i]->panels();
      work += columns(parts[i]) * depth;
    }
    if (call.failed()) return;
    const int64_t rows = levels.count() / depth, blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock;
    work = work / kBytesOfUnit * std::max(rows / kRowsOfUnit, int64_t{1});
    call.divide(panels * blocks, work, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t block = i % blocks, row = block * rows / blocks;
        int64_t panel = i / blocks;
        size_t at = 0;
        for (; panel >= packed_[at]->panels(); ++at) panel -= packed_[at]->panels();
        PanelProduct own = all;
        own.rows = (block + 1) * rows / blocks - row;
        own.levels = levels.as<uint8_t>() + row * depth;
        multiply(own, parts[at], *packed_[at], panel, row);
      }
    });
  }

 private:
  struct Part {
    Tensor weights, scales, bias, out;
  };

  // Weights are read once for so many rows, which fit into the nearest cache.
  static constexpr int64_t kRowsOfBlock = 96;
  // What takes as long as reading a float: so many bytes of weights, for so many rows.
  static constexpr int64_t kBytesOfUnit = 4, kRowsOfUnit = 8;

  int64_t columns(const Part& part) const { return part.weights.sizes[transposed_ ? 0 : 1]; }

  // Packs the weights when they are first seen.
  bool pack(Call& call, const Part (&parts)[kParts], int64_t depth) const {
    std::call_once(once_, [&] {
      for (size_t i = 0; i < kParts; ++i) {
        packed_[i] = PackedWeights::of(parts[i].weights.template as<int8_t>(), depth, columns(parts[i]), transposed_);
        given_[i] = parts[i].weights.data;
      }
    });
    for (size_t i = 0; i < kParts; ++i)
      if (given_[i] != parts[i].weights.data) {
        call.fail("the weights of a product have to be constant");
        return false;
      }
    return true;
  }

  static void multiply(PanelProduct product, const Part& part, const PackedWeights& weights, int64_t panel,
                       int64_t row) {
    const int64_t column = panel * products().columns, place = row * weights.columns() + column;
    product.weights = weights.panel(panel);
    product.sums = weights.sums() + column;
    product.scales = part.scales.template as<float>() + column;
    product.bias = part.bias ? part.bias.template as<float>() + column : nullptr;
    product.columns = std::min(products().columns, weights.columns() - column);
    product.stride = weights.columns();
    if constexpr (kQuantized)
      product.rounded = part.out.template as<uint8_t>() + place;
    else
      product.out = part.out.template as<float>() + place;
    products().multiply(product);
  }

  bool transposed_;
  Activation activation_;
  mutable std::once_flag once_;
  mutable std::array<std::shared_ptr<const PackedWeights>, kParts> packed_;
  mutable std::array<const void*, kParts> given_;
};

template <int kParts, bool kQuantized>
void add(std::vector<const ort::CustomOp*>& operators, const std::string& name) {
  std::vector<Slot> inputs{{Type::kUint8}, {Type::kFloat}, {Type::kUint8}};
  for (int i = 0; i < kParts; ++i)
    inputs.insert(inputs.end(), {{Type::kInt8}, {Type::kFloat}, {Type::kFloat, Presence::kOptional}});
  if (kQuantized) inputs.insert(inputs.end(), {{Type::kFloat}, {Type::kUint8}});
  const std::vector<Slot> outputs(kParts, {kQuantized ? Type::kUint8 : Type::kFloat});
  operators.push_back(new Operator<Product<kParts, kQuantized>>(name, inputs, outputs));
}

}  // namespace

void add_products(std::vector<const ort::CustomOp*>& operators) {
  add<1, false>(operators, "Product");
  add<1, true>(operators, "ProductQuantized");
  add<3, false>(operators, "ThreeProducts");
}

}  // namespace jumok
