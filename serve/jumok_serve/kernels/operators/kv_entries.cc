// FloatEntries and Int8Entries: keys and values in the layout of the KV cache, by heads; int8 ones with scales.
#include "operators/register.h"

#include <algorithm>

#include "isa/row.h"
#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Type;

void write(const float* from, int64_t width, int64_t heads, float* to, int64_t stride) {
  for (int64_t head = 0; head < heads; ++head) std::copy_n(from + head * width, width, to + head * stride);
}

void write(const float* from, int64_t width, int64_t heads, Int8* to, int64_t stride) {
  row_kernels()->to_int8(from, width, heads, to, stride);
}

// From [B, entries, heads * width], or by heads already, [B, heads, entries, width].
template <typename Element>
class KvEntries {
 public:
  explicit KvEntries(Settings& settings) : heads_(settings.get<int64_t>("num_heads")) {
    if (heads_ < 1) settings.fail("there must be at least one head");
  }

  void compute(Call& call) const {
    const Tensor given = call.input(0);
    if (call.failed()) return;
    const bool of_tokens = given.axes == 3;
    if (of_tokens ? given.sizes[2] % heads_ != 0 : given.axes != 4 || given.sizes[1] != heads_)
      return call.fail("keys or values do not match the number of heads");
    const int64_t sentences = given.sizes[0], entries = given.sizes[of_tokens ? 1 : 2];
    const int64_t width = of_tokens ? given.sizes[2] / heads_ : given.sizes[3], stride = stride_of<Element>(width);
    if (width < 1) return call.fail("keys or values have no numbers for a head");
    const Tensor made = call.output(0, {sentences, heads_, entries, stride});
    if (call.failed() || given.count() == 0) return;
    call.parallel_for(sentences * entries, given.count(), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        if (of_tokens) {
          const int64_t to = i / entries * heads_ * entries + i % entries;
          write(given.as<float>() + i * heads_ * width, width, heads_, made.as<Element>() + to * stride,
                entries * stride);
        } else {
          for (int64_t head = i * heads_; head < (i + 1) * heads_; ++head)
            write(given.as<float>() + head * width, width, 1, made.as<Element>() + head * stride, 0);
        }
    });
  }

 private:
  int64_t heads_;
};

}  // namespace

void add_kv_entries(std::vector<const ort::CustomOp*>& operators) {
  operators.push_back(new Operator<KvEntries<float>>("FloatEntries", {{Type::kFloat}}, {{Type::kFloat}}));
  operators.push_back(new Operator<KvEntries<Int8>>("Int8Entries", {{Type::kFloat}}, {{Type::kInt8}}));
}

}  // namespace jumok
