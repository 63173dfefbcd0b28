// Which groups of weights make a set: the one with the largest weights that is left, and the largest ones that fit.
#include "sets.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace jumok {
namespace {

constexpr int64_t kSide = 4, kHalf = kSide / 2;
constexpr int16_t kMost = 128;
constexpr int64_t kMostLooks = 64;  // for a group that fits: where few do, sets are not worth it

// What the weights of every two neighbours make: the positive ones, and then the negative ones.
class Weight {
 public:
  Weight(const int8_t* weights, int64_t size) : sums_(static_cast<size_t>(size)) {
    for (int64_t i = 0; i < size; ++i) {
      int16_t& sum = sums_[static_cast<size_t>((weights[i] > 0 ? 0 : size / kHalf) + i / kHalf)];
      sum = static_cast<int16_t>(sum + std::abs(weights[i]));
    }
  }

  int16_t most() const { return *std::max_element(sums_.begin(), sums_.end()); }

  bool fits(const Weight& other) const {
    int16_t most = 0;
    for (size_t i = 0; i < sums_.size(); ++i) most = std::max(most, static_cast<int16_t>(sums_[i] + other.sums_[i]));
    return most <= kMost;
  }

  void add(const Weight& other) {
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] = static_cast<int16_t>(sums_[i] + other.sums_[i]);
  }

 private:
  std::vector<int16_t> sums_;
};

using Groups = std::vector<int32_t>;

// A set of the first of the groups that are left, which are taken from there; empty if none is found.
Groups taken_set(const std::vector<Weight>& all, Groups& left, size_t size) {
  Groups set{left.front()};
  Weight sum = all[static_cast<size_t>(set[0])];
  std::vector<Groups::iterator> found;
  auto each = left.begin() + 1;
  const auto end = left.begin() + std::min(static_cast<int64_t>(left.size()), kMostLooks);
  for (; each < end && set.size() < size; ++each) {
    const Weight& other = all[static_cast<size_t>(*each)];
    if (!sum.fits(other)) continue;
    sum.add(other);
    set.push_back(*each);
    found.push_back(each);
  }
  if (set.size() < size) return {};
  for (auto last = found.rbegin(); last != found.rend(); ++last) left.erase(*last);
  left.erase(left.begin());
  return set;
}

// Moves sets of so many groups to the end of `order`; says how many groups these are. Of threes, what is left over may
// be two twos rather than a three and one alone.
int64_t move_sets(const std::vector<Weight>& all, Groups& left, Groups& order, size_t size) {
  const size_t before = order.size();
  Groups alone;
  while (!left.empty() && !(size == 3 && left.size() + alone.size() == 4)) {
    const Groups set = taken_set(all, left, size);
    order.insert(order.end(), set.begin(), set.end());
    if (!set.empty()) continue;
    alone.push_back(left.front());
    left.erase(left.begin());
  }
  left.insert(left.begin(), alone.begin(), alone.end());
  return static_cast<int64_t>(order.size() - before);
}

}  // namespace

Sets form_sets(int8_t* panel, int64_t groups, int64_t columns, int32_t* places) {
  const int64_t size = kSide * columns;
  const std::vector<int8_t> given(panel, panel + groups * size);
  std::vector<Weight> all;
  std::vector<int16_t> most;
  for (int64_t i = 0; i < groups; ++i) {
    all.emplace_back(given.data() + i * size, size);
    most.push_back(all.back().most());
  }
  Groups left(static_cast<size_t>(groups)), order;
  std::iota(left.begin(), left.end(), 0);
  std::stable_sort(left.begin(), left.end(),
                   [&](int32_t a, int32_t b) { return most[static_cast<size_t>(a)] > most[static_cast<size_t>(b)]; });
  Sets sets{};
  sets.in_threes = move_sets(all, left, order, 3);
  sets.in_twos = move_sets(all, left, order, 2);
  order.insert(order.end(), left.begin(), left.end());
  if (2 * sets.groups() < groups) {  // not worth it
    std::iota(order.begin(), order.end(), 0);
    sets = {};
  }
  for (int64_t i = 0; i < groups; ++i) {
    const int32_t group = order[static_cast<size_t>(i)];
    places[i] = group * static_cast<int32_t>(kSide);
    const int8_t* from = given.data() + group * size;
    int8_t* to = panel + i * size;
    for (int64_t k = 0; k < size; ++k) {
      const int64_t column = k / kSide, half = k % kSide / kHalf;
      to[i < sets.groups() ? k : (half * columns + column) * kHalf + k % kHalf] = from[k];
    }
  }
  return sets;
}

}  // namespace jumok
