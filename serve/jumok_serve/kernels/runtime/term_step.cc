// Steps of batches in which some searches have terms.
#include "runtime/term_step.h"

#include <algorithm>
#include <cstdint>

#include "runtime/search_arrays.h"

namespace jumok {
namespace {

// Tokens that a search has written after its next step.
int64_t next_length(const SearchArrays& all, int64_t slot) { return all.positions[slot] + 2 - all.terms[slot]->prompt; }

// Chooses the continuations of a search with terms. Returns false if Python has to choose.
bool choose(const SearchArrays& all, int64_t slot, int64_t candidates, const int64_t* tokens, const float* totals,
            TermStep& step) {
  const TermRows& terms = *all.terms[slot];
  const int64_t length = next_length(all, slot);
  if (terms.writes == 0 || length == terms.max_length) return false;
  const TermCandidates of_rows{live_rows(all, slot), candidates, tokens, totals, all.ends + slot * all.most_ends,
                               all.most_ends};
  return step.choose(terms, of_rows, all.beam_size, length);
}

// Continues a search with terms.
void run_on_with_terms(const SearchArrays& all, int64_t slot, int64_t time, const TermStep& step, const Found& found) {
  step.write(found, false);
  std::fill_n(found.scores, all.beam_size, 0.0f);  // totals of candidates are log-probabilities
  run_on(all, slot, time, found);
  all.candidates[slot] = step.run_on(*all.terms[slot], all.beam_size);
}

}  // namespace

// `jumok_run_on` with terms. The continuations of the searches in `others`, at most `number` of each, follow one
// another, and end at `found_ends`.
JUMOK_EXPORTED int64_t jumok_run_on_with_terms(const SearchArrays* all, const int64_t* slots, int64_t count,
                                               int64_t candidates, const int64_t* tokens, const float* totals,
                                               int64_t time, int64_t number, int64_t* others, int64_t* found_ends,
                                               int64_t* found_tokens, float* found_scores, int64_t* found_rows) {
  const int64_t size = all->beam_size, each = size * candidates;
  Candidates of_slot(size, candidates);
  TermStep with_terms;
  int64_t left = 0, end = 0;
  bool undefined = false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots[i];
    if (!all->present[slot]) continue;
    const Found found{found_tokens + end, found_scores + end, found_rows + end};
    of_slot.begin(tokens + i * each, totals + i * each);
    const bool without_number = of_slot.without_number(), has_terms = all->terms[slot] != nullptr;
    const bool steady = all->steady[slot] > 0 && !without_number;
    int64_t place = 0;
    if (has_terms && !without_number &&
        choose(*all, slot, candidates, tokens + i * each, totals + i * each, with_terms)) {
      if (steady && with_terms.runs_on(*all->terms[slot], size, next_length(*all, slot))) {
        run_on_with_terms(*all, slot, time, with_terms, found);
        continue;
      }
      place = with_terms.write(found, true);
    } else {
      const int64_t needed = all->needed[slot];
      for (; place < size; ++place) needed == 0 ? of_slot.take_of(found, place) : of_slot.take(found, place);
      if (steady && !has_terms && found.scores[size - 1] > kDeadScore && !ends_one(*all, slot, found)) {
        run_on(*all, slot, time, found);
        continue;
      }
      for (; place < std::min(number, needed); ++place) of_slot.take(found, place);
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
    for (int64_t row = 0, live = live_rows(*all, slots[i]); row < live; ++row) {
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

}  // namespace jumok
