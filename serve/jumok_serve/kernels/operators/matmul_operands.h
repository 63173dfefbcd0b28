// Constant weights that multiply the same inputs, and the epilogue of each product.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "isa/gemm.h"
#include "operators/operator.h"
#include "operators/packed_weights.h"

namespace jumok {

// Calls `one(product, row, panel)` for every panel of weights and every block of rows, whose first is `row`; `product`
// has the prepared inputs of the block. `bytes` of weights are read.
template <typename Number, typename One>
void multiply_panels(Call& call, const PanelGemm<Number>& all, const Number* numbers, int64_t panels, int64_t bytes,
                     bool as_int16, One one) {
  // Rows for which weights are read once. Without VNNI their uint8 and int16 copies fit into L2.
  constexpr int64_t kRowsPerBlock = 96;
  // A unit of work takes as long as reading a float: these bytes of weights, for these rows.
  constexpr int64_t kBytesPerUnit = 4, kRowsPerUnit = 8;
  constexpr bool kQuantized = std::is_same_v<Number, uint8_t>;
  const int64_t blocks = (all.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  // Inputs that are copied are prepared once for all panels of a block of rows; else a panel is read once for all
  // blocks.
  const bool by_blocks = kQuantized && gemm_kernels().copies_inputs;
  call.parallel_for(panels * blocks, bytes / kBytesPerUnit * std::max(all.rows / kRowsPerUnit, int64_t{1}),
                    [&](int64_t first, int64_t last) {
                      PanelGemm<Number> own = all;
                      for (int64_t i = first, known = -1; i < last; ++i) {
                        const int64_t block = by_blocks ? i / panels : i % blocks, row = block * all.rows / blocks;
                        own.rows = (block + 1) * all.rows / blocks - row;
                        if (block != known) {
                          own.inputs = numbers + row * own.depth;
                          if constexpr (kQuantized) {
                            const PreparedInputs prepared =
                                gemm_kernels().prepare(own.inputs, own.rows, own.depth, as_int16);
                            own.inputs = prepared.uint8;
                            own.inputs_int16 = prepared.int16;
                          }
                        }
                        known = block;
                        one(own, row, by_blocks ? i % panels : i / blocks);
                      }
                    });
}

// kParts matrices; their inputs are those of the kernel from 0 on. Quantized: inputs, their scale and zero point, and
// for each matrix weights, scales and bias. Floats: inputs, and for each matrix weights and bias.
template <typename Number, int kParts>
class MatmulOperands {
 public:
  static constexpr bool kQuantized = std::is_same_v<Number, uint8_t>;
  static constexpr size_t kFirst = kQuantized ? 3 : 1, kInputsOfPart = kQuantized ? 3 : 2,
                          kInputs = kFirst + kInputsOfPart * kParts;

  explicit MatmulOperands(Settings& settings) {
    const bool transposed = settings.get<int64_t>("transposed") != 0;
    const int64_t biases = settings.get<int64_t>("biased");
    all_.activation = static_cast<Activation>(settings.get<int64_t>("activation"));
    if (all_.activation < Activation::kNone || all_.activation > Activation::kRelu)
      settings.fail("these kernels do not know the activation of a product; install a newer jumok");
    for (size_t i = 0; i < kParts && !settings.failed(); ++i) {
      const size_t at = kFirst + kInputsOfPart * i;
      const Tensor matrix = settings.constant(at);
      Part& part = parts_[i];
      if (kQuantized) part.scales = settings.constant(at + 1);
      const bool biased = biases != 0 && (biases != kOnlyLast || i == kParts - 1);
      if (biased) part.bias = settings.constant(at + kInputsOfPart - 1);
      const int64_t columns = matrix.sizes[transposed ? 0 : 1], depth = matrix.sizes[transposed ? 1 : 0];
      if (matrix.axes != 2 || columns < 1 || depth < 1 || (i > 0 && depth != all_.depth) ||
          (kQuantized && part.scales.count() != columns) || (biased && part.bias.count() != columns))
        settings.fail("weights, scales and biases of a product do not fit each other");
      if (settings.failed()) return;
      all_.depth = depth;
      part.weights = Weights::of(matrix.as<Weight>(), depth, columns, transposed);
      needs_int16_ |= part.weights->needs_int16();
      panels_ += part.weights->panels();
      bytes_ += columns * depth * static_cast<int64_t>(sizeof(Weight));
    }
    if constexpr (kQuantized) {
      const auto inputs = settings.quantization<Quantization>(1, 2);
      all_.scale = inputs.scale;
      all_.zero_point = inputs.zero_point;
    }
  }

  // Quantizes the results.
  void quantize_results(Quantization quantization) { all_.quantization = quantization; }

  // Number of rows of inputs [.., depth], or -1 and a failed call.
  int64_t rows(Call& call, const Tensor& numbers) const {
    if (call.failed()) return -1;
    if (numbers.axes > 0 && numbers.sizes[numbers.axes - 1] == all_.depth) return numbers.count() / all_.depth;
    call.fail("rows are not as deep as the weights that they are multiplied with");
    return -1;
  }

  // Factors of the rows of quantized inputs [.., depth], an optional input [.., 1] of the kernel; or null.
  const float* factors(Call& call, const Tensor& numbers, size_t index) const {
    if (!kQuantized || call.failed()) return nullptr;
    const Tensor factors = call.input(index);
    if (!factors) return nullptr;
    if (factors.axes != numbers.axes || factors.sizes[numbers.axes - 1] != 1 ||
        !std::equal(numbers.sizes, numbers.sizes + numbers.axes - 1, factors.sizes))
      call.fail("factors of rows do not match the rows of a product");
    return factors.as<float>();
  }

  int64_t columns(size_t part) const { return parts_[part].weights->columns(); }

  // Each product [rows, columns], quantized if `Result` is uint8_t. `factors` of the rows may be null.
  template <typename Result>
  void multiply(Call& call, const Tensor& numbers, int64_t rows, const std::array<Result*, kParts>& out,
                const float* factors = nullptr) const {
    PanelGemm<Number> all = all_;
    all.rows = rows;
    multiply_panels(call, all, numbers.as<Number>(), panels_, bytes_, needs_int16_,
                    [&](PanelGemm<Number>& own, int64_t row, int64_t panel) {
                      size_t at = 0;
                      for (; panel >= parts_[at].weights->panels(); ++at) panel -= parts_[at].weights->panels();
                      if (factors != nullptr) own.factors = factors + row;
                      multiply(own, parts_[at], panel, out[at] + row * columns(at));
                    });
  }

 private:
  using Weight = WeightOf<Number>;
  using Weights = PackedWeights<Weight>;

  struct Part {
    std::shared_ptr<const Weights> weights;
    Tensor scales, bias;
  };

  static constexpr int64_t kOnlyLast = 2;  // `biased`: of several products, only the last has a bias
  static void multiply(PanelGemm<Number>& product, const Part& part, int64_t panel, float* out) {
    product.out = out + panel * gemm_kernels().columns;
    multiply(product, part, panel);
  }
  static void multiply(PanelGemm<Number>& product, const Part& part, int64_t panel, uint8_t* out) {
    product.quantized_out = out + panel * gemm_kernels().columns;
    multiply(product, part, panel);
  }
  static void multiply(PanelGemm<Number>& product, const Part& part, int64_t panel) {
    const int64_t column = panel * gemm_kernels().columns;
    product.weights = part.weights->panel(panel);
    product.overflow_groups = part.weights->overflow_groups(panel);
    product.depth_offsets = part.weights->depth_offsets(panel);
    product.weight_sums = part.weights->sums() + column;
    if (kQuantized) product.scales = part.scales.template as<float>() + column;
    product.bias = part.bias ? part.bias.template as<float>() + column : nullptr;
    product.stride = part.weights->columns();
    product.columns = std::min(gemm_kernels().columns, product.stride - column);
    if constexpr (kQuantized)
      gemm_kernels().multiply(product);
    else
      gemm_kernels().multiply_floats(product);
  }

  PanelGemm<Number> all_{};  // fields common to all panels
  std::array<Part, kParts> parts_;
  int64_t panels_ = 0, bytes_ = 0;
  bool needs_int16_ = false;  // true if some panel needs int16 inputs
};

// Inputs of an operator that are the operands of its products.
template <typename Number>
std::vector<Argument> operand_inputs(int parts) {
  const Argument number{ort::Type::kFloat}, optional{ort::Type::kFloat, ort::Presence::kOptional};
  std::vector<Argument> inputs{number};
  if (std::is_same_v<Number, uint8_t>) inputs = {{ort::Type::kUint8}, number, {ort::Type::kUint8}};
  for (int i = 0; i < parts; ++i)
    if (std::is_same_v<Number, uint8_t>)
      inputs.insert(inputs.end(), {{ort::Type::kInt8}, number, optional});
    else
      inputs.insert(inputs.end(), {number, optional});
  return inputs;
}

}  // namespace jumok
