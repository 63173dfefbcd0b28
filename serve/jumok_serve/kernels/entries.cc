// FloatEntries and Int8Entries: keys and values of tokens as attention reads them, by heads; in 8 bits with scales.
#include "entries.h"

#include <algorithm>

#include "operator.h"
#include "rows.h"

namespace jumok {
namespace {

using ort::Type;

// Of [B, entries, heads * width], or of what is by heads already, [B, heads, entries, width].
template <typename Element>
class Entries {
 public:
  explicit Entries(Settings& settings) : heads_(settings.get<int64_t>("num_heads")) {
    if (heads_ < 1) settings.fail("there must be at least one head");
  }

  void compute(Call& call) const {
    const Tensor given = call.input(0);
    if (call.failed()) return;
    const bool of_tokens = given.axes == 3;
    if (of_tokens ? given.sizes[2] % heads_ != 0 : given.axes != 4 || given.sizes[1] != heads_)
      return call.fail("keys or values are not those of so many heads");
    const int64_t sentences = given.sizes[0], entries = given.sizes[of_tokens ? 1 : 2];
    const int64_t width = of_tokens ? given.sizes[2] / heads_ : given.sizes[3], stride = stride_of<Element>(width);
    const Tensor made = call.output(0, {sentences, heads_, entries, stride});
    if (call.failed()) return;
    call.divide(sentences * entries, given.count(), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i)
        for (int64_t head = 0; head < heads_; ++head) {
          const int64_t in_order = (i / entries * heads_ + head) * entries + i % entries;
          const int64_t from = of_tokens ? i * heads_ + head : in_order;
          write(given.as<float>() + from * width, made.as<Element>() + in_order * stride, width);
        }
    });
  }

 private:
  static void write(const float* from, float* to, int64_t width) { std::copy_n(from, width, to); }
  static void write(const float* from, Int8* to, int64_t width) { rows()->to_int8(from, to, width); }

  int64_t heads_;
};

}  // namespace

void add_entries(std::vector<const ort::CustomOp*>& operators) {
  operators.push_back(new Operator<Entries<float>>("FloatEntries", {{Type::kFloat}}, {{Type::kFloat}}));
  operators.push_back(new Operator<Entries<Int8>>("Int8Entries", {{Type::kFloat}}, {{Type::kInt8}}));
}

}  // namespace jumok
