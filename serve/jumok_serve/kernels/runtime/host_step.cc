// Work between two steps for many sentences at once, on arrays of Python. Equals the NumPy code of
// `jumok_serve.search.step_arrays`, `jumok_serve.runtime.kv_cache` and `jumok_serve.runtime.slot_buffers`, which takes
// many calls.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/term_step.h"

#define JUMOK_EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using jumok::Found;
using jumok::kDeadScore;
using jumok::TermCandidates;
using jumok::TermRows;
using jumok::TermStep;

// As in `jumok_serve.search.step_arrays`: arrays by slot, with the shape of an element.
struct SearchArrays {
  int64_t beam_size;       // K
  int64_t most_kept;       // M
  int64_t most_ends;       // E
  int64_t* tokens;         // [K]
  float* scores;           // [K]
  int64_t* parents;        // [K]
  int64_t* positions;      // []
  int64_t* steady;         // []
  int64_t* candidates;     // []
  const int64_t* needed;   // []
  const bool* present;     // []
  const int64_t* ends;     // [E]
  TermRows* const* terms;  // []; null without terms
  int64_t* kept_tokens;    // ring buffers of the last M steps
  double* kept_scores;     // [M, K]
  int64_t* kept_rows;      // [M, K]

  const int64_t* ends_of(int64_t slot) const { return ends + slot * most_ends; }
  int64_t kept(int64_t slot, int64_t time) const { return (slot * most_kept + time % most_kept) * beam_size; }

  // Rows that are not dead; they come first.
  int64_t live_rows(int64_t slot) const {
    int64_t live = 0;
    while (live < beam_size && scores[slot * beam_size + live] > kDeadScore) ++live;
    return live;
  }
};

// True if a score ranks before another; NaN ranks last.
bool before(float score, float other) { return score > other || (std::isnan(other) && !std::isnan(score)); }

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

  TermCandidates with_terms(int64_t live, const int64_t* ends, int64_t most_ends) const {
    return {live, each_, tokens_, scores_, ends, most_ends};
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

bool ends_one(const SearchArrays& all, int64_t slot, const Found& found) {
  const int64_t* ends = all.ends_of(slot);
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
void run_on(const SearchArrays& all, int64_t slot, int64_t time, const Found& found) {
  const int64_t size = all.beam_size, now = slot * size, kept = all.kept(slot, time);
  copy(found.tokens, size, all.tokens + now);
  copy(found.scores, size, all.scores + now);
  copy(found.rows, size, all.parents + now);
  copy(found.tokens, size, all.kept_tokens + kept);
  std::copy_n(found.scores, size, all.kept_scores + kept);
  copy(found.rows, size, all.kept_rows + kept);
  ++all.positions[slot];
  --all.steady[slot];
}

// Chooses the continuations of a search with terms. Returns false if Python has to choose.
bool choose_with_terms(const SearchArrays& all, int64_t slot, const Candidates& candidates, TermStep& step) {
  const TermRows* terms = all.terms[slot];
  if (terms == nullptr || terms->writes == 0) return false;
  const int64_t length = all.positions[slot] + 2 - terms->prompt;
  if (length == terms->max_length) return false;
  return step.choose(*terms, candidates.with_terms(all.live_rows(slot), all.ends_of(slot), all.most_ends),
                     all.beam_size, length);
}

// Continues a search with terms.
void run_on_with_terms(const SearchArrays& all, int64_t slot, int64_t time, const TermStep& step, const Found& found) {
  step.write(found);
  std::fill_n(found.scores, all.beam_size, 0.0f);  // totals of candidates are log-probabilities
  run_on(all, slot, time, found);
  all.candidates[slot] = step.run_on(*all.terms[slot]);
  copy(all.terms[slot]->sums, all.beam_size, all.kept_scores + all.kept(slot, time));
}

}  // namespace

// Step of `count` searches in `slots`. Searches that need more than the common case are listed in `others`. Their
// continuations, at most `number` each, follow one another in `tokens`, `scores` and `rows`, and end at `found_ends`.
// Returns the number of these searches, negated if some of them have NaN candidates.
JUMOK_EXPORTED int64_t jumok_run_on(const SearchArrays* all, const int64_t* slots, int64_t count, int64_t candidates,
                                    const int64_t* tokens, const float* totals, int64_t time, int64_t number,
                                    int64_t* others, int64_t* found_ends, int64_t* found_tokens, float* found_scores,
                                    int64_t* found_rows) {
  const int64_t size = all->beam_size;
  Candidates of_slot(size, candidates);
  TermStep with_terms;
  int64_t left = 0, end = 0;
  bool undefined = false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots[i];
    if (!all->present[slot]) continue;
    const Found found{found_tokens + end, found_scores + end, found_rows + end};
    of_slot.begin(tokens + i * size * candidates, totals + i * size * candidates);
    const bool without_number = of_slot.without_number();
    const int64_t needed = all->needed[slot] == 0 ? size : std::min(number, all->needed[slot]);
    int64_t place = 0;
    if (!without_number && choose_with_terms(*all, slot, of_slot, with_terms)) {
      if (all->steady[slot] > 0 && with_terms.runs_on(size)) {
        run_on_with_terms(*all, slot, time, with_terms, found);
        continue;
      }
      place = with_terms.write(found);
    } else {
      for (; place < size; ++place) all->needed[slot] == 0 ? of_slot.take_of(found, place) : of_slot.take(found, place);
      if (all->terms[slot] == nullptr && all->steady[slot] > 0 && found.scores[size - 1] > kDeadScore &&
          !ends_one(*all, slot, found) && !without_number) {
        run_on(*all, slot, time, found);
        continue;
      }
      for (; place < needed; ++place) of_slot.take(found, place);
    }
    end += place;
    others[left] = slot;
    found_ends[left++] = end;
    undefined = undefined || without_number;
  }
  return undefined ? -left : left;
}

// Lists the boosted tokens of the searches in `slots`: row and token each in `places`, at most `most`. Returns their
// number, which may be larger.
JUMOK_EXPORTED int64_t jumok_boosts(const SearchArrays* all, const int64_t* slots, int64_t count, int64_t* places,
                                    int64_t most) {
  int64_t listed = 0;
  for (int64_t i = 0; i < count; ++i) {
    const TermRows* terms = all->terms[slots[i]];
    if (terms == nullptr || terms->writes == 0) continue;
    for (int64_t row = 0, live = all->live_rows(slots[i]); row < live; ++row) {
      const int32_t* state = terms->state(terms->states[row]);
      for (int64_t column = 0; column < terms->num_tokens; ++column) {
        if (!terms->boosts(state, column)) continue;
        if (listed < most) {
          places[2 * listed] = i * all->beam_size + row;
          places[2 * listed + 1] = terms->tokens[column];
        }
        ++listed;
      }
    }
  }
  return listed;
}

// Places new entries of KV cache slots: `visible` is [slots, K, E], `places` [slots, K]. Returns the last place; if it
// is not below E, new entries are not marked visible yet.
JUMOK_EXPORTED int64_t jumok_place(bool* visible, const int64_t* positions, const int64_t* parents, int64_t slots,
                                   int64_t size, int64_t entries, int64_t* places) {
  const int64_t each = size * entries;
  std::vector<char> before(static_cast<size_t>(each)), used(static_cast<size_t>(entries));
  int64_t last = 0;
  for (int64_t slot = 0; slot < slots; ++slot) {
    bool* rows = visible + slot * each;
    int64_t* place = places + slot * size;
    if (positions[slot] == 0) std::memset(rows, 0, each);
    if (size == 1) {
      last = std::max(last, *place = positions[slot]);
      continue;
    }
    std::memcpy(before.data(), rows, each);
    std::memset(used.data(), 0, entries);
    for (int64_t row = 0; row < size; ++row) {
      const char* seen = before.data() + parents[slot * size + row] * entries;
      std::memcpy(rows + row * entries, seen, entries);
      for (int64_t entry = 0; entry < entries; ++entry) used[entry] |= seen[entry];
    }
    int64_t entry = 0;
    for (int64_t row = 0; row < size; ++row, ++entry) {
      while (entry < entries && used[entry]) ++entry;
      place[row] = entry;
    }
    last = std::max(last, entry - 1);
  }
  for (int64_t row = 0; row < slots * size && last < entries; ++row) visible[row * entries + places[row]] = true;
  return last;
}

// Gathers the decoder inputs of `count` sentences from arrays by slot.
JUMOK_EXPORTED int64_t jumok_feed(const int64_t* slots, int64_t count, int64_t size, const int64_t* tokens,
                                  const int64_t* positions, const int64_t* lengths, const int64_t* places,
                                  int64_t* token_ids, int64_t* fed_positions, int64_t* links, int64_t* source_lengths) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots[i];
    source_lengths[i] = lengths[slot];
    for (int64_t row = 0; row < size; ++row) {
      const int64_t to = i * size + row, from = slot * size + row;
      token_ids[to] = tokens[from];
      fed_positions[to] = positions[slot];
      links[3 * to] = slot;
      links[3 * to + 2] = places[from];
    }
  }
  return count;
}

// Copies `blocks` blocks of `bytes` bytes of each of `count` rows into slots.
JUMOK_EXPORTED int64_t jumok_copy_slots(const char* from, int64_t from_row, int64_t from_block, const int64_t* rows,
                                        char* to, int64_t to_slot, int64_t to_block, const int64_t* slots,
                                        int64_t count, int64_t blocks, int64_t bytes) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t block = 0; block < blocks; ++block)
      std::memcpy(to + slots[i] * to_slot + block * to_block, from + rows[i] * from_row + block * from_block, bytes);
  return count;
}
