// AddNorm: the residual connection, layer normalisation, and levels of its result.
#include "norm.h"

#include "operator.h"
#include "rows.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

template <bool kQuantized>
class AddNorm {
 public:
  explicit AddNorm(Settings& settings)
      : epsilon_(settings.get<float>("epsilon")), weight_(settings.constant(2)), bias_(settings.constant(3)) {
    if constexpr (kQuantized) levels_ = settings.levels<Levels>(4, 5);
  }

  void compute(Call& call) const {
    const Tensor x = call.input(0), y = call.input(1);
    if (call.failed()) return;
    const int64_t width = x.axes == 0 ? 0 : x.sizes[x.axes - 1];
    if (x.count() != y.count() || weight_.count() != width || bias_.count() != width)
      return call.fail("what is added and normalised does not fit its weights");
    const Tensor sum = call.output(0, x.sizes, x.axes), norm = call.output(1, x.sizes, x.axes);
    const Tensor quantized = kQuantized ? call.output(2, x.sizes, x.axes) : Tensor{};
    if (call.failed() || width == 0) return;
    call.divide(x.count() / width, x.count(), [&](int64_t first, int64_t last) {
      static thread_local std::vector<float> memory;
      memory.resize(static_cast<size_t>(2 * width));
      for (int64_t row = first; row < last; ++row) {
        const int64_t place = row * width;
        float* summed = sum ? sum.as<float>() + place : memory.data();
        float* normal = norm ? norm.as<float>() + place : memory.data() + width;
        rows()->add_norm(x.as<float>() + place, y.as<float>() + place, weight_.as<float>(), bias_.as<float>(), epsilon_,
                         summed, normal, width);
        if constexpr (kQuantized) rows()->quantize(normal, quantized.as<uint8_t>() + place, width, levels_);
      }
    });
  }

 private:
  float epsilon_;
  Tensor weight_, bias_;
  Levels levels_;
};

}  // namespace

void add_norm(std::vector<const ort::CustomOp*>& operators) {
  const Slot number{Type::kFloat}, wanted{Type::kFloat, Presence::kOptional};
  const std::vector<Slot> inputs(4, number);
  operators.push_back(new Operator<AddNorm<false>>("AddNorm", inputs, {wanted, wanted}));
  std::vector<Slot> quantized = inputs;
  quantized.insert(quantized.end(), {{Type::kFloat}, {Type::kUint8}});
  operators.push_back(new Operator<AddNorm<true>>("AddNormQuantized", quantized, {wanted, wanted, {Type::kUint8}}));
}

}  // namespace jumok
