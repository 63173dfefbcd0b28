// Constant weights that the same numbers are multiplied with, and what becomes of each product.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "operator.h"
#include "packed.h"
#include "products.h"

namespace jumok {

// kParts matrices; their inputs are those of a kernel from 0 on. For levels these are the levels, scale and zero point,
// and for each matrix the weights, their scales and the bias; for floats the floats, weights and biases.
template <typename Number, int kParts>
class Factor {
 public:
  static constexpr bool kOfLevels = std::is_same_v<Number, uint8_t>;
  static constexpr size_t kFirst = kOfLevels ? 3 : 1, kOfPart = kOfLevels ? 3 : 2, kInputs = kFirst + kOfPart * kParts;

  explicit Factor(Settings& settings) {
    const bool transposed = settings.get<int64_t>("transposed") != 0, biased = settings.get<int64_t>("biased") != 0;
    all_.activation = static_cast<Activation>(settings.get<int64_t>("activation"));
    if (all_.activation < Activation::kNone || all_.activation > Activation::kRelu)
      settings.fail("these kernels do not know the activation behind a product; install a newer jumok");
    for (size_t i = 0; i < kParts && !settings.failed(); ++i) {
      const size_t at = kFirst + kOfPart * i;
      const Tensor matrix = settings.constant(at);
      Part& part = parts_[i];
      if (kOfLevels) part.scales = settings.constant(at + 1);
      if (biased) part.bias = settings.constant(at + kOfPart - 1);
      const int64_t columns = matrix.sizes[transposed ? 0 : 1], depth = matrix.sizes[transposed ? 1 : 0];
      if (matrix.axes != 2 || (i > 0 && depth != all_.depth) || (kOfLevels && part.scales.count() != columns) ||
          (biased && part.bias.count() != columns))
        settings.fail("weights, scales and biases of a product do not fit each other");
      if (settings.failed()) return;
      all_.depth = depth;
      part.weights = Weights::of(matrix.as<Weight>(), depth, columns, transposed);
      words_ |= part.weights->takes_words();
      panels_ += part.weights->panels();
      work_ += columns * depth * static_cast<int64_t>(sizeof(Weight)) / kBytesOfUnit;
    }
    if constexpr (kOfLevels) {
      const Tensor scale = settings.constant(1), zero_point = settings.constant(2);
      if (settings.failed()) return;
      all_.scale = *scale.as<float>();
      all_.zero_point = *zero_point.as<uint8_t>();
    }
  }

  // Products are given in these levels.
  void round(Levels levels) { all_.rounding = levels; }

  // The number of rows of numbers [.., depth], or -1 and a failed call.
  int64_t rows(Call& call, const Tensor& numbers) const {
    if (call.failed()) return -1;
    if (numbers.axes > 0 && numbers.sizes[numbers.axes - 1] == all_.depth) return numbers.count() / all_.depth;
    call.fail("rows are not as deep as the weights that they are multiplied with");
    return -1;
  }

  int64_t columns(size_t part) const { return parts_[part].weights->columns(); }

  // Each matrix's product [rows, columns], in floats, or in levels where `Result` is uint8_t.
  template <typename Result>
  void multiply(Call& call, const Tensor& numbers, int64_t rows, const std::array<Result*, kParts>& out) const {
    const int64_t blocks = (rows + kRowsOfBlock - 1) / kRowsOfBlock;
    // With sets a block's levels may be made words, once for all panels; otherwise a panel is read once for all blocks.
    const bool by_blocks = kOfLevels && products().sets;
    call.divide(panels_ * blocks, work_ * std::max(rows / kRowsOfUnit, int64_t{1}), [&](int64_t first, int64_t last) {
      PanelProduct<Number> own = all_;
      for (int64_t i = first, known = -1; i < last; ++i) {
        const int64_t block = by_blocks ? i / panels_ : i % blocks, row = block * rows / blocks;
        own.rows = (block + 1) * rows / blocks - row;
        if (block != known) prepare(numbers.as<Number>() + row * own.depth, own);
        known = block;
        int64_t panel = by_blocks ? i % panels_ : i / blocks;
        size_t at = 0;
        for (; panel >= parts_[at].weights->panels(); ++at) panel -= parts_[at].weights->panels();
        multiply(own, parts_[at], panel, out[at] + row * columns(at));
      }
    });
  }

 private:
  using Weight = WeightOf<Number>;
  using Weights = PackedWeights<Weight>;

  struct Part {
    std::shared_ptr<const Weights> weights;
    Tensor scales, bias;
  };

  // Weights are read once for so many rows. Without VNNI they are in bytes and words, which fit into the second cache.
  static constexpr int64_t kRowsOfBlock = 96;
  // What takes as long as reading a float: so many bytes of weights, for so many rows.
  static constexpr int64_t kBytesOfUnit = 4, kRowsOfUnit = 8;

  void prepare(const Number* numbers, PanelProduct<Number>& product) const {
    product.numbers = numbers;
    if constexpr (kOfLevels) {
      const Prepared prepared = products().prepared(numbers, product.rows, product.depth, words_);
      product.numbers = prepared.levels;
      product.words = prepared.words;
    }
  }
  static void multiply(PanelProduct<Number>& product, const Part& part, int64_t panel, float* out) {
    product.out = out + panel * products().columns;
    multiply(product, part, panel);
  }
  static void multiply(PanelProduct<Number>& product, const Part& part, int64_t panel, uint8_t* out) {
    product.rounded = out + panel * products().columns;
    multiply(product, part, panel);
  }
  static void multiply(PanelProduct<Number>& product, const Part& part, int64_t panel) {
    const int64_t column = panel * products().columns;
    product.weights = part.weights->panel(panel);
    product.sets = part.weights->sets(panel);
    product.places = part.weights->places(panel);
    product.sums = part.weights->sums() + column;
    if (kOfLevels) product.scales = part.scales.template as<float>() + column;
    product.bias = part.bias ? part.bias.template as<float>() + column : nullptr;
    product.stride = part.weights->columns();
    product.columns = std::min(products().columns, product.stride - column);
    if constexpr (kOfLevels)
      products().multiply(product);
    else
      products().multiply_floats(product);
  }

  PanelProduct<Number> all_{};  // what is the same for all panels
  std::array<Part, kParts> parts_;
  int64_t panels_ = 0, work_ = 0;
  bool words_ = false;  // whether levels are taken as words, too
};

}  // namespace jumok
