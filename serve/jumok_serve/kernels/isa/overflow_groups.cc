// Forms overflow groups greedily: the chunk with the largest weights first, then the largest chunks that fit.
#include "isa/overflow_groups.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace jumok {
namespace {

constexpr int64_t kChunkDepth = 4, kHalf = kChunkDepth / 2;
constexpr int16_t kMaxSum = 128;
constexpr int64_t kMaxCandidates = 64;  // chunks tried for a group; if fewer fit, groups do not pay

// Sums of neighboring weights: the positive ones, then the magnitudes of the negative ones.
class PairSums {
 public:
  PairSums(const int8_t* weights, int64_t size) : sums_(static_cast<size_t>(size)) {
    for (int64_t i = 0; i < size; ++i) {
      int16_t& sum = sums_[static_cast<size_t>((weights[i] > 0 ? 0 : size / kHalf) + i / kHalf)];
      sum = static_cast<int16_t>(sum + std::abs(weights[i]));
    }
  }

  int16_t most() const { return *std::max_element(sums_.begin(), sums_.end()); }

  bool fits(const PairSums& other) const {
    int16_t most = 0;
    for (size_t i = 0; i < sums_.size(); ++i) most = std::max(most, static_cast<int16_t>(sums_[i] + other.sums_[i]));
    return most <= kMaxSum;
  }

  void add(const PairSums& other) {
    for (size_t i = 0; i < sums_.size(); ++i) sums_[i] = static_cast<int16_t>(sums_[i] + other.sums_[i]);
  }

 private:
  std::vector<int16_t> sums_;
};

using Chunks = std::vector<int32_t>;

// Takes a group with the first chunk out of `left`; empty if no group is found.
Chunks take_group(const std::vector<PairSums>& all, Chunks& left, size_t size) {
  Chunks group{left.front()};
  PairSums sum = all[static_cast<size_t>(group[0])];
  std::vector<Chunks::iterator> found;
  auto each = left.begin() + 1;
  const auto end = left.begin() + std::min(static_cast<int64_t>(left.size()), kMaxCandidates);
  for (; each < end && group.size() < size; ++each) {
    const PairSums& other = all[static_cast<size_t>(*each)];
    if (!sum.fits(other)) continue;
    sum.add(other);
    group.push_back(*each);
    found.push_back(each);
  }
  if (group.size() < size) return {};
  for (auto last = found.rbegin(); last != found.rend(); ++last) left.erase(*last);
  left.erase(left.begin());
  return group;
}

// Moves groups of `size` chunks to the end of `order`, and returns the number of moved chunks. Four chunks are left to
// form two pairs rather than a triple and a single.
int64_t move_groups(const std::vector<PairSums>& all, Chunks& left, Chunks& order, size_t size) {
  const size_t before = order.size();
  Chunks alone;
  while (!left.empty() && !(size == 3 && left.size() + alone.size() == 4)) {
    const Chunks group = take_group(all, left, size);
    order.insert(order.end(), group.begin(), group.end());
    if (!group.empty()) continue;
    alone.push_back(left.front());
    left.erase(left.begin());
  }
  left.insert(left.begin(), alone.begin(), alone.end());
  return static_cast<int64_t>(order.size() - before);
}

}  // namespace

OverflowGroups form_overflow_groups(int8_t* panel, int64_t chunks, int64_t columns, int32_t* depth_offsets) {
  const int64_t size = kChunkDepth * columns;
  const std::vector<int8_t> given(panel, panel + chunks * size);
  std::vector<PairSums> all;
  std::vector<int16_t> most;
  for (int64_t i = 0; i < chunks; ++i) {
    all.emplace_back(given.data() + i * size, size);
    most.push_back(all.back().most());
  }
  Chunks left(static_cast<size_t>(chunks)), order;
  std::iota(left.begin(), left.end(), 0);
  std::stable_sort(left.begin(), left.end(),
                   [&](int32_t a, int32_t b) { return most[static_cast<size_t>(a)] > most[static_cast<size_t>(b)]; });
  OverflowGroups overflow_groups{};
  overflow_groups.in_triples = move_groups(all, left, order, 3);
  overflow_groups.in_pairs = move_groups(all, left, order, 2);
  order.insert(order.end(), left.begin(), left.end());
  if (2 * overflow_groups.chunks() < chunks) {  // does not pay
    std::iota(order.begin(), order.end(), 0);
    overflow_groups = {};
  }
  for (int64_t i = 0; i < chunks; ++i) {
    const int32_t chunk = order[static_cast<size_t>(i)];
    depth_offsets[i] = chunk * static_cast<int32_t>(kChunkDepth);
    const int8_t* from = given.data() + chunk * size;
    int8_t* to = panel + i * size;
    for (int64_t k = 0; k < size; ++k) {
      const int64_t column = k / kChunkDepth, half = k % kChunkDepth / kHalf;
      to[i < overflow_groups.chunks() ? k : (half * columns + column) * kHalf + k % kHalf] = from[k];
    }
  }
  return overflow_groups;
}

}  // namespace jumok
