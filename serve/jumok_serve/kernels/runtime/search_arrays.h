// Searches by slot that take part in a step, and their candidates.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#define JUMOK_EXPORTED extern "C" __attribute__((visibility("default")))

namespace jumok {

constexpr float kDeadScore = -1e9f;

struct TermRows;

// As in `jumok_serve.search.step_arrays`: arrays by slot, with the shape of an element.
struct SearchArrays {
  int64_t beam_size;      // K
  int64_t most_kept;      // M
  int64_t most_ends;      // E
  int64_t* tokens;        // [K]
  float* scores;          // [K]
  int64_t* parents;       // [K]
  int64_t* positions;     // []
  int64_t* steady;        // []
  const int64_t* needed;  // []
  const bool* present;    // []
  const int64_t* ends;    // [E]
  int64_t* kept_tokens;   // ring buffers of the last M steps
  float* kept_scores;     // [M, K]
  int64_t* kept_rows;     // [M, K]
  // Only of batches with terms:
  int64_t* candidates;     // []
  TermRows* const* terms;  // []; null for a search without terms
};

// Continuations of one sentence, best first.
struct Found {
  int64_t* tokens;
  float* scores;
  int64_t* rows;
};

// True if a score ranks before another; NaN ranks last.
inline bool before(float score, float other) { return score > other || (std::isnan(other) && !std::isnan(score)); }

// Candidates of a sentence's rows, [K, C], best first in each row.
class Candidates {
 public:
  Candidates(int64_t rows, int64_t each) : rows_(rows), each_(each), taken_(static_cast<size_t>(rows)) {}

  void begin(const int64_t* tokens, const float* scores) {
    tokens_ = tokens;
    scores_ = scores;
    std::fill(taken_.begin(), taken_.end(), 0);
  }

  // Takes the best remaining candidate; of equal ones, that of the lower row.
  void take(const Found& found, int64_t place) {
    int64_t best = -1;
    for (int64_t row = 0; row < rows_; ++row)
      if (taken_[row] < each_ && (best < 0 || before(next(row), next(best)))) best = row;
    found.tokens[place] = tokens_[best * each_ + taken_[best]];
    found.scores[place] = next(best);
    found.rows[place] = best;
    ++taken_[best];
  }

  // Takes the best candidate of a row.
  void take_of(const Found& found, int64_t row) const {
    found.tokens[row] = tokens_[row * each_];
    found.scores[row] = scores_[row * each_];
    found.rows[row] = row;
  }

  bool without_number() const {
    for (int64_t i = 0; i < rows_ * each_; ++i)
      if (std::isnan(scores_[i])) return true;
    return false;
  }

 private:
  float next(int64_t row) const { return scores_[row * each_ + taken_[row]]; }

  int64_t rows_, each_;
  std::vector<int64_t> taken_;  // by row
  const int64_t* tokens_ = nullptr;
  const float* scores_ = nullptr;
};

// Rows of a search that are not dead; they come first.
inline int64_t live_rows(const SearchArrays& all, int64_t slot) {
  int64_t live = 0;
  while (live < all.beam_size && all.scores[slot * all.beam_size + live] > kDeadScore) ++live;
  return live;
}

inline bool ends_one(const SearchArrays& all, int64_t slot, const Found& found) {
  const int64_t* ends = all.ends + slot * all.most_ends;
  for (int64_t row = 0; row < all.beam_size; ++row)
    for (int64_t end = 0; end < all.most_ends; ++end)
      if (found.tokens[row] == ends[end]) return true;
  return false;
}

template <typename T>
void copy(const T* from, int64_t count, T* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

// Continues a search with the first K continuations.
inline void run_on(const SearchArrays& all, int64_t slot, int64_t time, const Found& found) {
  const int64_t size = all.beam_size, now = slot * size;
  const int64_t kept = (slot * all.most_kept + time % all.most_kept) * size;
  copy(found.tokens, size, all.tokens + now);
  copy(found.scores, size, all.scores + now);
  copy(found.rows, size, all.parents + now);
  copy(found.tokens, size, all.kept_tokens + kept);
  copy(found.scores, size, all.kept_scores + kept);
  copy(found.rows, size, all.kept_rows + kept);
  ++all.positions[slot];
  --all.steady[slot];
}

}  // namespace jumok
