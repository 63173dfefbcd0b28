// Select: every row's best tokens, by their log-probabilities under constraints.
#include "select.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "operator.h"
#include "rows.h"

namespace jumok {
namespace {

using ort::Type;

// Factors and biases of some places among the scores of all rows, by row.
class Constraints {
 public:
  Constraints(const Tensor& factor_places, const Tensor& factors, const Tensor& bias_places, const Tensor& biases,
              int64_t width)
      : width_(width) {
    sort(factor_places, factors, &factors_);
    sort(bias_places, biases, &biases_);
  }

  bool any(int64_t row) const {
    return begin(factors_, row) != end(factors_, row) || begin(biases_, row) != end(biases_, row);
  }

  // Factors, which make any score smaller if they are larger than 1, then biases.
  void apply(int64_t row, float* scores) const {
    for (auto entry = begin(factors_, row); entry != end(factors_, row); ++entry) {
      float& score = scores[entry->place - row * width_];
      score = score < 0 ? score * entry->value : score / entry->value;
    }
    for (auto entry = begin(biases_, row); entry != end(biases_, row); ++entry)
      scores[entry->place - row * width_] += entry->value;
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

class Select {
 public:
  explicit Select(Settings&) {}

  void compute(Call& call) const {
    const Tensor logits = call.input(0), scores = call.input(1), candidates = call.input(2);
    Tensor lists[8];
    for (size_t i = 0; i < 8; ++i) lists[i] = call.input(3 + i);
    const Tensor renormalize = call.input(11);
    if (call.failed()) return;
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
    for (int64_t i = 0; i < renormalize.count(); ++i)
      again[static_cast<size_t>(renormalize.as<int64_t>()[i])] = 1;
    call.divide(count, logits.count() / 2, [&](int64_t first, int64_t last) {
      static thread_local Room room;
      for (int64_t row = first; row < last; ++row)
        select(row, logits.as<float>() + row * width, width, on_logits, on_log_probs,
               again[static_cast<size_t>(row)] != 0, scores.as<float>()[row], wanted, room,
               tokens.as<int64_t>() + row * wanted, totals.as<float>() + row * wanted);
    });
  }

 private:
  struct Candidate {
    float score;
    int64_t token;

    // The better one comes first, of equal ones that with the lower token.
    bool operator<(const Candidate& other) const {
      return score > other.score || (score == other.score && token < other.token);
    }
  };

  // Memory of one thread that is used again.
  struct Room {
    std::vector<float> row, maxima, order;
    std::vector<Candidate> found;
  };

  static void select(int64_t row, const float* logits, int64_t width, const Constraints& on_logits,
                     const Constraints& on_log_probs, bool renormalized, float score, int64_t wanted, Room& room,
                     int64_t* tokens, float* totals) {
    const float* values = logits;
    if (on_logits.any(row)) {
      room.row.assign(logits, logits + width);
      on_logits.apply(row, room.row.data());
      values = room.row.data();
    }
    room.maxima.resize(static_cast<size_t>((width + kBlock - 1) / kBlock));
    Best best = rows()->log_sum(values, width, room.maxima.data());
    if (on_log_probs.any(row) || renormalized) {
      // Log-probabilities take the place of logits, and nothing is subtracted from them unless it is asked for.
      room.row.resize(static_cast<size_t>(width));
      for (int64_t i = 0; i < width; ++i) room.row[static_cast<size_t>(i)] = values[i] - best.most - best.log_sum;
      on_log_probs.apply(row, room.row.data());
      values = room.row.data();
      const Best after = rows()->log_sum(values, width, room.maxima.data());
      if (renormalized)
        best = after;
      else if (!std::isnan(best.log_sum))
        best = {0, 0};
    }
    if (std::isnan(best.log_sum)) {
      for (int64_t i = 0; i < wanted; ++i) {
        tokens[i] = i;
        totals[i] = std::numeric_limits<float>::quiet_NaN();
      }
      return;
    }
    find_best(values, width, best, wanted, room);
    for (int64_t i = 0; i < wanted; ++i) {
      tokens[i] = room.found[static_cast<size_t>(i)].token;
      totals[i] = room.found[static_cast<size_t>(i)].score + score;
    }
  }

  // The `wanted` best in order, as the first ones that are found. As many blocks have maxima that are not below the
  // least that is looked at, and each of these is a candidate itself.
  static void find_best(const float* values, int64_t width, const Best& best, int64_t wanted, Room& room) {
    float least = -std::numeric_limits<float>::infinity();
    if (wanted < static_cast<int64_t>(room.maxima.size())) {
      room.order = room.maxima;
      std::nth_element(room.order.begin(), room.order.begin() + (wanted - 1), room.order.end(), std::greater<>());
      least = room.order[static_cast<size_t>(wanted - 1)];
      // Different logits may have one log-probability.
      least -= 1e-6f * (std::abs(least) + std::abs(best.most) + std::abs(best.log_sum));
    }
    room.found.clear();
    for (size_t block = 0; block < room.maxima.size(); ++block) {
      if (room.maxima[block] < least) continue;
      const int64_t first = static_cast<int64_t>(block) * kBlock, last = std::min(first + kBlock, width);
      for (int64_t token = first; token < last; ++token)
        if (values[token] >= least) room.found.push_back({values[token] - best.most - best.log_sum, token});
    }
    std::partial_sort(room.found.begin(), room.found.begin() + wanted, room.found.end());
  }
};

}  // namespace

void add_select(std::vector<const ort::CustomOp*>& operators) {
  const Slot number{Type::kFloat}, index{Type::kInt64};
  std::vector<Slot> inputs{number, number, index};
  for (int list = 0; list < 4; ++list) inputs.insert(inputs.end(), {index, number});
  inputs.push_back(index);
  operators.push_back(new Operator<Select>("Select", inputs, {index, number}));
}

}  // namespace jumok
