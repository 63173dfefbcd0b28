// Select: the best tokens of every row, by log-probability under constraints.
#include "operators/register.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <vector>

#include "isa/row.h"
#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Type;

// Factors and biases of tokens, sorted by row.
class Constraints {
 public:
  Constraints(const Tensor& factor_places, const Tensor& factors, const Tensor& bias_places, const Tensor& biases,
              int64_t width)
      : width_(width) {
    sort(factor_places, factors, &factors_);
    sort(bias_places, biases, &biases_);
  }

  int64_t count(int64_t row) const {
    return (end(factors_, row) - begin(factors_, row)) + (end(biases_, row) - begin(biases_, row));
  }

  // Applies factors, which lower a score if larger than 1, then biases, to the scores that `score_of` returns.
  template <typename ScoreOf>
  void apply(int64_t row, ScoreOf score_of) const {
    for (auto entry = begin(factors_, row), last = end(factors_, row); entry != last; ++entry) {
      float& score = score_of(entry->place - row * width_);
      score = score < 0 ? score * entry->value : score / entry->value;
    }
    for (auto entry = begin(biases_, row), last = end(biases_, row); entry != last; ++entry)
      score_of(entry->place - row * width_) += entry->value;
  }

 private:
  struct Entry {
    int64_t place;
    float value;
  };
  using Entries = std::vector<Entry>;

  static void sort(const Tensor& places, const Tensor& values, Entries* entries) {
    const int64_t count = places.count();
    entries->reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) entries->push_back({places.as<int64_t>()[i], values.as<float>()[i]});
    const auto by_place = [](const Entry& a, const Entry& b) { return a.place < b.place; };
    if (!std::is_sorted(entries->begin(), entries->end(), by_place))
      std::stable_sort(entries->begin(), entries->end(), by_place);
  }

  Entries::const_iterator begin(const Entries& entries, int64_t row) const {
    if (entries.empty()) return entries.end();
    return std::lower_bound(entries.begin(), entries.end(), row * width_,
                            [](const Entry& entry, int64_t place) { return entry.place < place; });
  }
  Entries::const_iterator end(const Entries& entries, int64_t row) const { return begin(entries, row + 1); }

  int64_t width_;
  Entries factors_, biases_;
};

struct Candidate {
  float score;
  int64_t token;

  // By falling score, then by rising token id.
  bool operator<(const Candidate& other) const {
    return score > other.score || (score == other.score && token < other.token);
  }
};

// Scores of a row in blocks. A block is copied only if a score changes, or if it is incomplete.
class Blocks {
 public:
  void take(const float* scores, int64_t width) {
    blocks_.resize(static_cast<size_t>((width + kBlock - 1) / kBlock));
    copy_of_.assign(blocks_.size(), nullptr);
    maxima_.resize(blocks_.size());
    copied_ = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = scores + static_cast<int64_t>(i) * kBlock;
    if (const int64_t rest = width % kBlock; rest != 0) copy(blocks_.size() - 1, rest);
  }

  float at(int64_t token) const { return blocks_[static_cast<size_t>(token / kBlock)][token % kBlock]; }

  // A score to change; copies its block.
  float& operator[](int64_t token) {
    const size_t block = static_cast<size_t>(token / kBlock);
    if (copy_of_[block] == nullptr) copy(block, kBlock);
    return copy_of_[block][token % kBlock];
  }

  // Log-sum-exp of all scores; records the maximum of every block, which `remove` updates.
  LogSumExp log_sum_exp() {
    return row_kernels()->log_sum_exp(blocks_.data(), static_cast<int64_t>(blocks_.size()), maxima_.data());
  }

  // Removes a score; only `find` may follow.
  void remove(int64_t token) {
    (*this)[token] = std::numeric_limits<float>::quiet_NaN();
    const size_t block = static_cast<size_t>(token / kBlock);
    float max = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < kBlock; ++i) max = std::max(max, copy_of_[block][i]);  // NaN is ignored in this order
    maxima_[block] = max;
  }

  // Removes NaN from the recorded maxima, which sorting needs.
  void ignore_nan() {
    for (float& max : maxima_)
      if (std::isnan(max)) max = -std::numeric_limits<float>::infinity();
  }

  // Appends the candidates that may be among the `wanted` best, and some others: scores not below the `wanted`-th best
  // maximum of a block, which is a candidate itself.
  void find(int64_t width, int64_t wanted, const LogSumExp& sum, std::vector<Candidate>& found) {
    float least = least_of_best_maxima(wanted);
    // Rounding may give different scores one log-probability.
    if (std::isfinite(least)) least -= 1e-6f * (std::abs(least) + std::abs(sum.max) + std::abs(sum.log_sum));
    for (size_t block = 0; block < blocks_.size(); ++block) {
      if (maxima_[block] < least) continue;
      const int64_t first = static_cast<int64_t>(block) * kBlock, count = std::min(kBlock, width - first);
      for (int64_t i = 0; i < count; ++i)
        if (blocks_[block][i] >= least) found.push_back({blocks_[block][i] - sum.max - sum.log_sum, first + i});
    }
  }

 private:
  static constexpr int64_t kFew = 32;  // up to which insertion is faster than nth_element

  void copy(size_t block, int64_t count) {
    if (copied_ == copies_.size()) copies_.emplace_back();
    auto& own = copies_[copied_++];
    std::fill(std::copy_n(blocks_[block], count, own.begin()), own.end(), -std::numeric_limits<float>::infinity());
    blocks_[block] = copy_of_[block] = own.data();
  }

  // The `wanted`-th best maximum; -infinity if there are fewer.
  float least_of_best_maxima(int64_t wanted) {
    if (wanted == 1) return *std::max_element(maxima_.begin(), maxima_.end());
    if (wanted > static_cast<int64_t>(maxima_.size())) return -std::numeric_limits<float>::infinity();
    if (wanted > kFew) {
      best_ = maxima_;
      std::nth_element(best_.begin(), best_.begin() + (wanted - 1), best_.end(), std::greater<>());
      return best_[static_cast<size_t>(wanted - 1)];
    }
    best_.assign(static_cast<size_t>(wanted), -std::numeric_limits<float>::infinity());
    for (const float max : maxima_) {
      if (!(max > best_.back())) continue;
      auto place = best_.end() - 1;
      for (; place != best_.begin() && place[-1] < max; --place) *place = place[-1];
      *place = max;
    }
    return best_.back();
  }

  std::vector<const float*> blocks_;
  std::vector<float*> copy_of_;  // by block, or null
  std::deque<std::array<float, kBlock>> copies_;
  size_t copied_ = 0;
  std::vector<float> maxima_, best_;
};

class Select {
 public:
  explicit Select(Settings&) {}

  void compute(Call& call) const {
    const Tensor logits = call.input(0), scores = call.input(1), candidates = call.input(2);
    Tensor lists[8];
    for (size_t i = 0; i < 8; ++i) lists[i] = call.input(3 + i);
    const Tensor renormalize = call.input(11);
    if (call.failed()) return;
    if (candidates.count() != 1) return call.fail("the number of candidates must be one number");
    if (logits.axes != 2 || scores.count() != logits.sizes[0])
      return call.fail("logits and scores have different rows");
    const int64_t count = logits.sizes[0], width = logits.sizes[1];
    for (size_t i = 0; i < 8; i += 2) {
      if (lists[i].count() != lists[i + 1].count()) return call.fail("a constraint needs a place and a value");
      for (int64_t j = 0; j < lists[i].count(); ++j) {
        const int64_t place = lists[i].as<int64_t>()[j];
        if (place < 0 || place >= count * width) return call.fail("a constraint is outside of the logits");
      }
    }
    for (int64_t i = 0; i < renormalize.count(); ++i) {
      const int64_t row = renormalize.as<int64_t>()[i];
      if (row < 0 || row >= count) return call.fail("a row to renormalize is outside of the logits");
    }
    const int64_t wanted = std::min(*candidates.as<int64_t>(), width);
    if (wanted < 1) return call.fail("at least one candidate must be asked for");
    const Tensor tokens = call.output(0, {count, wanted}), totals = call.output(1, {count, wanted});
    if (call.failed()) return;
    const Constraints on_logits(lists[0], lists[1], lists[2], lists[3], width);
    const Constraints on_log_probs(lists[4], lists[5], lists[6], lists[7], width);
    std::vector<char> again(static_cast<size_t>(count), 0);
    for (int64_t i = 0; i < renormalize.count(); ++i) again[static_cast<size_t>(renormalize.as<int64_t>()[i])] = 1;
    call.parallel_for(count, logits.count() / 2, [&](int64_t first, int64_t last) {
      static thread_local Room room;
      for (int64_t row = first; row < last; ++row)
        select(row, logits.as<float>() + row * width, width, on_logits, on_log_probs,
               again[static_cast<size_t>(row)] != 0, scores.as<float>()[row], wanted, room,
               tokens.as<int64_t>() + row * wanted, totals.as<float>() + row * wanted);
    });
  }

 private:
  static constexpr int64_t kFew = 128;  // most constraints of a row for the path without a second pass

  // Reused memory of this thread.
  struct Room {
    Blocks scores;
    std::vector<float> log_probs;
    std::vector<Candidate> found;
  };

  static void select(int64_t row, const float* logits, int64_t width, const Constraints& on_logits,
                     const Constraints& on_log_probs, bool renormalized, float score, int64_t wanted, Room& room,
                     int64_t* tokens, float* totals) {
    Blocks& scores = room.scores;
    scores.take(logits, width);
    on_logits.apply(row, [&](int64_t token) -> float& { return scores[token]; });
    LogSumExp sum = scores.log_sum_exp();
    const bool few = on_log_probs.count(row) <= kFew;
    if (renormalized || !few) {
      room.log_probs.resize(static_cast<size_t>(width));
      for (int64_t i = 0; i < width; ++i) room.log_probs[static_cast<size_t>(i)] = scores.at(i) - sum.max - sum.log_sum;
      scores.take(room.log_probs.data(), width);
      on_log_probs.apply(row, [&](int64_t token) -> float& { return scores[token]; });
      const LogSumExp after = scores.log_sum_exp();
      if (renormalized)
        sum = after;
      else if (!std::isnan(sum.log_sum))
        sum = {0, 0};
      if (std::isnan(after.log_sum)) scores.ignore_nan();
    }
    if (std::isnan(sum.log_sum)) return write_nan(wanted, tokens, totals);
    room.found.clear();
    if (few && !renormalized) set_apart(row, on_log_probs, sum, scores, room.found);
    scores.find(width, wanted, sum, room.found);
    if (static_cast<int64_t>(room.found.size()) < wanted) return write_nan(wanted, tokens, totals);
    std::partial_sort(room.found.begin(), room.found.begin() + wanted, room.found.end());
    for (int64_t i = 0; i < wanted; ++i) {
      tokens[i] = room.found[static_cast<size_t>(i)].token;
      totals[i] = room.found[static_cast<size_t>(i)].score + score;
    }
  }

  static void write_nan(int64_t wanted, int64_t* tokens, float* totals) {
    for (int64_t i = 0; i < wanted; ++i) {
      tokens[i] = i;
      totals[i] = std::numeric_limits<float>::quiet_NaN();
    }
  }

  // Makes candidates of the tokens under constraints.
  static void set_apart(int64_t row, const Constraints& on_log_probs, const LogSumExp& sum, Blocks& scores,
                        std::vector<Candidate>& found) {
    const auto before = [](const Candidate& candidate, int64_t token) { return candidate.token < token; };
    on_log_probs.apply(row, [&](int64_t token) -> float& {
      auto place = std::lower_bound(found.begin(), found.end(), token, before);
      if (place == found.end() || place->token != token)
        place = found.insert(place, {scores.at(token) - sum.max - sum.log_sum, token});
      return place->score;
    });
    for (const Candidate& candidate : found) scores.remove(candidate.token);
  }
};

}  // namespace

void add_select(std::vector<const ort::CustomOp*>& operators) {
  const Argument number{Type::kFloat}, index{Type::kInt64};
  std::vector<Argument> inputs{number, number, index};
  for (int list = 0; list < 4; ++list) inputs.insert(inputs.end(), {index, number});
  inputs.push_back(index);
  operators.push_back(new Operator<Select>("Select", inputs, {index, number}));
}

}  // namespace jumok
