// Which groups of weights are paired: each with the first of the next ones that fits.
#include "pairs.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace jumok {
namespace {

constexpr int kMost = 128;
constexpr int64_t kMostLooks = 64;  // for a group that fits: where few do, pairs are not worth it

// What the weights of every two neighbours make, positive and negative ones apart.
class Group {
 public:
  Group(const int8_t* weights, int64_t size) : positive_(static_cast<size_t>(size / 2)), negative_(positive_) {
    for (int64_t i = 0; i < size; ++i) {
      const int16_t weight = weights[i];
      auto& sum = (weight > 0 ? positive_ : negative_)[static_cast<size_t>(i / 2)];
      sum = static_cast<int16_t>(sum + weight);
    }
  }

  bool fits(const Group& other) const {
    bool fits = true;
    for (size_t i = 0; i < positive_.size() && fits; ++i)
      fits = positive_[i] + other.positive_[i] <= kMost && negative_[i] + other.negative_[i] >= -kMost;
    return fits;
  }

 private:
  std::vector<int16_t> positive_, negative_;
};

}  // namespace

int64_t pair_groups(int8_t* panel, int64_t groups, int64_t columns, int32_t* places) {
  constexpr int64_t kSide = 4, kHalf = kSide / 2;
  const int64_t size = kSide * columns;
  const std::vector<int8_t> given(panel, panel + groups * size);
  std::vector<Group> all;
  std::vector<int32_t> left, order, alone;
  for (int64_t i = 0; i < groups; ++i) {
    all.emplace_back(given.data() + i * size, size);
    left.push_back(static_cast<int32_t>(groups - 1 - i));  // the first at the end
  }
  while (!left.empty()) {
    const int32_t one = left.back();
    left.pop_back();
    const auto end = left.rbegin() + std::min(static_cast<int64_t>(left.size()), kMostLooks);
    const auto other = std::find_if(left.rbegin(), end, [&](int32_t each) {
      return all[static_cast<size_t>(one)].fits(all[static_cast<size_t>(each)]);
    });
    if (other == end) {
      alone.push_back(one);
      continue;
    }
    order.insert(order.end(), {one, *other});
    left.erase(std::next(other).base());
  }
  auto paired = static_cast<int64_t>(order.size());
  order.insert(order.end(), alone.begin(), alone.end());
  if (paired < groups / 2) {  // not worth it
    std::iota(order.begin(), order.end(), 0);
    paired = 0;
  }
  for (int64_t i = 0; i < groups; ++i) {
    const int32_t group = order[static_cast<size_t>(i)];
    places[i] = group * static_cast<int32_t>(kSide);
    const int8_t* from = given.data() + group * size;
    int8_t* to = panel + i * size;
    for (int64_t k = 0; k < size; ++k) {
      const int64_t column = k / kSide, half = k % kSide / kHalf;
      to[i < paired ? k : (half * columns + column) * kHalf + k % kHalf] = from[k];
    }
  }
  return paired;
}

}  // namespace jumok
