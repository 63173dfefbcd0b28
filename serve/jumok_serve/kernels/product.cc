// Product: levels times constant weights in 8 bits, a bias, an activation, and levels of the result.
#include "product.h"

#include <algorithm>
#include <array>
#include <memory>
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
  explicit Product(Settings& settings) {
    const bool transposed = settings.get<int64_t>("transposed") != 0, biased = settings.get<int64_t>("biased") != 0;
    all_.activation = static_cast<Activation>(settings.get<int64_t>("activation"));
    const Tensor scale = settings.constant(1), zero_point = settings.constant(2);
    if constexpr (kQuantized) all_.rounding = settings.levels<Levels>(3 + 3 * kParts, 4 + 3 * kParts);
    for (size_t i = 0; i < kParts && !settings.failed(); ++i) {
      const Tensor matrix = settings.constant(3 + 3 * i);
      Part& part = parts_[i];
      part.scales = settings.constant(4 + 3 * i);
      if (biased) part.bias = settings.constant(5 + 3 * i);
      const int64_t columns = matrix.sizes[transposed ? 0 : 1], depth = matrix.sizes[transposed ? 1 : 0];
      if (matrix.axes != 2 || (i > 0 && depth != all_.depth) || part.scales.count() != columns ||
          (biased && part.bias.count() != columns))
        settings.fail("weights, scales and biases of a product do not fit each other");
      if (settings.failed()) return;
      all_.depth = depth;
      part.weights = PackedWeights::of(matrix.as<int8_t>(), depth, columns, transposed);
      panels_ += part.weights->panels();
      work_ += columns * depth / kBytesOfUnit;
    }
    if (settings.failed()) return;
    all_.scale = *scale.as<float>();
    all_.zero_point = *zero_point.as<uint8_t>();
  }

  void compute(Call& call) const {
    const Tensor levels = call.input(0);
    if (call.failed()) return;
    if (levels.axes == 0 || levels.sizes[levels.axes - 1] != all_.depth)
      return call.fail("levels are not as deep as the weights that they are multiplied with");
    Tensor out[kParts];
    for (size_t i = 0; i < kParts; ++i) {
      int64_t sizes[kMostAxes];
      std::copy(levels.sizes, levels.sizes + levels.axes - 1, sizes);
      sizes[levels.axes - 1] = parts_[i].weights->columns();
      out[i] = call.output(i, sizes, levels.axes);
    }
    if (call.failed()) return;
    const int64_t rows = levels.count() / all_.depth, blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock;
    call.divide(panels_ * blocks, work_ * std::max(rows / kRowsOfUnit, int64_t{1}), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t block = i % blocks, row = block * rows / blocks;
        int64_t panel = i / blocks;
        size_t at = 0;
        for (; panel >= parts_[at].weights->panels(); ++at) panel -= parts_[at].weights->panels();
        PanelProduct own = all_;
        own.rows = (block + 1) * rows / blocks - row;
        own.levels = levels.as<uint8_t>() + row * own.depth;
        multiply(own, parts_[at], panel, out[at], row);
      }
    });
  }

 private:
  struct Part {
    std::shared_ptr<const PackedWeights> weights;
    Tensor scales, bias;
  };

  // Weights are read once for so many rows, which fit into the nearest cache.
  static constexpr int64_t kRowsOfBlock = 96;
  // What takes as long as reading a float: so many bytes of weights, for so many rows.
  static constexpr int64_t kBytesOfUnit = 4, kRowsOfUnit = 8;

  static void multiply(PanelProduct product, const Part& part, int64_t panel, const Tensor& out, int64_t row) {
    const int64_t all = part.weights->columns(), column = panel * products().columns, place = row * all + column;
    product.weights = part.weights->panel(panel);
    product.sums = part.weights->sums() + column;
    product.scales = part.scales.template as<float>() + column;
    product.bias = part.bias ? part.bias.template as<float>() + column : nullptr;
    product.columns = std::min(products().columns, all - column);
    product.stride = all;
    if constexpr (kQuantized)
      product.rounded = out.as<uint8_t>() + place;
    else
      product.out = out.as<float>() + place;
    products().multiply(product);
  }

  PanelProduct all_{};  // what is the same for all panels
  std::array<Part, kParts> parts_;
  int64_t panels_ = 0, work_ = 0;
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
