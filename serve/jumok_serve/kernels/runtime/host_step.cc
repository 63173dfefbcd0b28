// Work between two steps for many sentences at once, on arrays of Python. Equals the NumPy code of
// `jumok_serve.search.step_arrays` and `jumok_serve.runtime.tensors`, which takes many calls.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/search_arrays.h"

namespace jumok {

// Step of `count` searches in `slots`. Searches that need more than the common case are listed in `others`, with
// `number` continuations each in `tokens`, `scores` and `rows`. Returns their number, negated if some of them have NaN
// candidates.
JUMOK_EXPORTED int64_t jumok_run_on(const SearchArrays* all, const int64_t* slots, int64_t count, int64_t candidates,
                                    const int64_t* tokens, const float* totals, int64_t time, int64_t number,
                                    int64_t* others, int64_t* found_tokens, float* found_scores, int64_t* found_rows) {
  const int64_t size = all->beam_size;
  Candidates of_slot(size, candidates);
  int64_t left = 0;
  bool undefined = false;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots[i];
    if (!all->present[slot]) continue;
    const Found found{found_tokens + left * number, found_scores + left * number, found_rows + left * number};
    of_slot.begin(tokens + i * size * candidates, totals + i * size * candidates);
    const bool of_rows = all->needed[slot] == 0;
    for (int64_t row = 0; row < size; ++row) of_rows ? of_slot.take_of(found, row) : of_slot.take(found, row);
    const bool without_number = of_slot.without_number();
    if (all->steady[slot] > 0 && found.scores[size - 1] > kDeadScore && !ends_one(*all, slot, found) &&
        !without_number) {
      run_on(*all, slot, time, found);
      continue;
    }
    for (int64_t place = size; place < number && !of_rows; ++place) of_slot.take(found, place);
    others[left++] = slot;
    undefined = undefined || without_number;
  }
  return undefined ? -left : left;
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

// The same for slots 0 .. count-1 and a decoder that gathers its state: `first_rows` [count] has the row of each
// sentence's first parent.
JUMOK_EXPORTED int64_t jumok_feed_rows(const int64_t* first_rows, int64_t count, int64_t size, const int64_t* tokens,
                                       const int64_t* positions, const int64_t* parents, const int64_t* lengths,
                                       int64_t* token_ids, int64_t* fed_positions, int64_t* fed_parents,
                                       int64_t* source_lengths) {
  std::copy_n(lengths, count, source_lengths);
  std::copy_n(tokens, count * size, token_ids);
  for (int64_t row = 0; row < count * size; ++row) {
    fed_positions[row] = positions[row / size];
    fed_parents[row] = first_rows[row / size] + parents[row];
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

}  // namespace jumok
