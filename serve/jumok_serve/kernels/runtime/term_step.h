// A step of a search with terms. Equals `jumok_serve.search.term_search`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/search_arrays.h"

namespace jumok {

constexpr double kBoost = 1.0 / (1 << 20);

// An ended hypothesis: its rank, the sum of its token scores, and tokens that its missing terms need.
struct EndedRow {
  double score, total;
  int64_t length, row, token, missing;
};

// As in `jumok_serve.search.term_rows`: the rows of one search, and the states that they may be in.
struct TermRows {
  enum Stopping : int64_t { kAtLength, kEarly, kNever };  // `early_stopping`: False, True, "never"

  int64_t num_tokens;  // T
  int64_t num_joins;   // J
  int64_t banks;
  int64_t most_ended;
  int64_t prompt;
  int64_t max_length;
  int64_t writes;  // 1 if the next step writes tokens that are not forced
  Stopping stopping;
  double length_penalty;
  double term_divisor;
  const int64_t* tokens;  // ascending, [T]
  const uint8_t* joins;   // by token, [J]
  const int32_t* table;   // [states, kFields + 2 * T]
  int64_t* states;        // of rows, [K]
  double* sums;           // [K]
  double* merits;         // [K]
  double* kept_sums;      // of the steps since Python last read them, [steps, K]
  EndedRow* ended;        // with all terms, best first, [most_ended]
  EndedRow* shorts;       // with missing terms, if none has all; fewest missing first, [K]
  int64_t kept;           // steps in kept_sums
  int64_t num_ended;
  int64_t num_shorts;

  // Fields of a state in the table. After them come, by term token, the next state, and 1 for a boosted token.
  enum Field { kLeft, kBank, kOthers, kBoosted, kAfterOther, kAfterJoin, kFields };

  const int32_t* state(int64_t number) const { return table + number * (kFields + 2 * num_tokens); }

  // Index of a token of the terms, or -1.
  int64_t column(int64_t token) const {
    const int64_t* place = std::lower_bound(tokens, tokens + num_tokens, token);
    return place != tokens + num_tokens && *place == token ? place - tokens : -1;
  }

  bool boosts(const int32_t* state, int64_t column) const { return state[kFields + num_tokens + column] != 0; }

  int32_t after(const int32_t* state, int64_t token, int64_t column) const {
    if (column >= 0) return state[kFields + column];
    return state[token < num_joins && joins[token] != 0 ? kAfterJoin : kAfterOther];
  }

  int32_t candidates(const int32_t* state) const { return state[kOthers] + state[kBoosted]; }
};

// Candidates of a sentence with terms, [K, C], best first in each row.
struct TermCandidates {
  int64_t live;  // rows
  int64_t each;  // C
  const int64_t* tokens;
  const float* scores;
  const int64_t* ends;
  int64_t most_ends;

  bool ends_with(int64_t token) const { return std::find(ends, ends + most_ends, token) != ends + most_ends; }
};

// The continuations of one search that run on, and those that may become ended hypotheses.
class TermStep {
 public:
  // Chooses the continuations of length `length`. Returns false if the table lacks a state.
  bool choose(const TermRows& rows, const TermCandidates& candidates, int64_t size, int64_t length) {
    found_.clear();
    for (int64_t row = 0; row < candidates.live; ++row)
      if (!find(rows, candidates, row)) return false;
    std::sort(found_.begin(), found_.end());
    allocate(rows, size);
    keep_ended(rows, size, length);
    return true;
  }

  // True if the search goes on with K rows.
  bool runs_on(const TermRows& rows, int64_t size, int64_t length) const {
    return running_ == size && !stops(rows, length);
  }

  // Writes the chosen continuations, best first, with or without those that end. Returns their number.
  int64_t write(const Found& to, bool with_ended) const {
    int64_t place = 0;
    for (const Continuation& one : found_) {
      if (!one.chosen || (one.ends && !with_ended)) continue;
      to.tokens[place] = one.token;
      to.scores[place] = one.score;
      to.rows[place++] = one.row;
    }
    return place;
  }

  // Continues the rows of a search. Returns the candidates that each needs next.
  int64_t run_on(TermRows& rows, int64_t size) const {
    int64_t row = 0, candidates = 0;
    for (const Continuation& one : found_) {
      if (!one.chosen || one.ends) continue;
      rows.states[row] = one.after;
      rows.sums[row] = -one.negated;
      rows.merits[row++] = one.merit;
      candidates = std::max<int64_t>(candidates, rows.candidates(rows.state(one.after)));
    }
    copy(rows.sums, size, rows.kept_sums + size * rows.kept++);
    rows.num_ended = static_cast<int64_t>(ended_.size());
    rows.num_shorts = static_cast<int64_t>(shorts_.size());
    std::copy(ended_.begin(), ended_.end(), rows.ended);
    std::copy(shorts_.begin(), shorts_.end(), rows.shorts);
    return candidates;
  }

 private:
  struct Continuation {
    double negated;  // sum of token scores
    int64_t row, token;
    double merit;
    int32_t after;
    float score;
    bool ends, chosen;

    bool operator<(const Continuation& other) const {
      if (negated != other.negated) return negated < other.negated;
      return row != other.row ? row < other.row : token < other.token;
    }
  };

  // Finds the continuations of a row: with boosted tokens, and the best others.
  bool find(const TermRows& rows, const TermCandidates& all, int64_t row) {
    const int32_t* state = rows.state(rows.states[row]);
    if (state[TermRows::kAfterOther] < 0) return false;
    int64_t others = state[TermRows::kOthers], boosted = state[TermRows::kBoosted];
    for (int64_t i = row * all.each; i < (row + 1) * all.each && others + boosted > 0; ++i) {
      const float score = all.scores[i];
      if (!(score > kDeadScore)) break;
      const int64_t token = all.tokens[i], column = rows.column(token);
      double added = score;
      if (column >= 0 && rows.boosts(state, column)) {
        added /= kBoost;
        --boosted;
      } else if (others > 0) {
        --others;
      } else {
        continue;
      }
      const bool ends = all.ends_with(token);
      const int32_t after = ends ? static_cast<int32_t>(rows.states[row]) : rows.after(state, token, column);
      if (after < 0) return false;
      const int32_t* next = rows.state(after);
      const double merit = rows.merits[row];
      const bool nearer = next[TermRows::kLeft] < state[TermRows::kLeft];
      found_.push_back(
          {-(rows.sums[row] + added), row, token, nearer ? merit : merit + added, after, score, ends, false});
    }
    return true;
  }

  // Chooses the continuations that run on: the best of each bank, and the one that needs the fewest tokens.
  void allocate(const TermRows& rows, int64_t size) {
    wanted_.assign(static_cast<size_t>(rows.banks), 0);
    for (const Continuation& one : found_)
      if (!one.ends) ++wanted_[bank(rows, one)];
    divide(size);
    running_ = 0;
    Continuation* leader = nullptr;
    for (Continuation& one : found_) {
      if (one.ends) continue;
      if (leader == nullptr || left(rows, one) < left(rows, *leader)) leader = &one;
      if (parts_[bank(rows, one)] == 0) continue;
      --parts_[bank(rows, one)];
      one.chosen = true;
      ++running_;
    }
    if (leader == nullptr || leader->chosen) return;
    Continuation* replaced = nullptr;  // the worst of the leader's bank, or the best of the lowest
    for (Continuation& one : found_)
      if (one.chosen && bank(rows, one) == bank(rows, *leader)) replaced = &one;
    if (replaced == nullptr)
      for (Continuation& one : found_)
        if (one.chosen && (replaced == nullptr || bank(rows, one) < bank(rows, *replaced))) replaced = &one;
    replaced->chosen = false;
    leader->chosen = true;
  }

  // Divides the places of a beam among banks, as `divide` in Python does.
  void divide(int64_t places) {
    parts_.assign(wanted_.size(), 0);
    const auto unfilled = [&] {
      int64_t count = 0;
      for (size_t bank = 0; bank < wanted_.size(); ++bank) count += parts_[bank] < wanted_[bank];
      return count;
    };
    for (int64_t count = unfilled(); places > 0 && count > 0; count = unfilled()) {
      const int64_t each = std::max<int64_t>(1, places / count);
      for (size_t bank = wanted_.size(); bank-- > 0;) {
        const int64_t given = std::min({each, wanted_[bank] - parts_[bank], places});
        parts_[bank] += given;
        places -= given;
      }
    }
  }

  // Chooses the ended continuations that may be kept: with all terms those among the best by rank.
  void keep_ended(const TermRows& rows, int64_t size, int64_t length) {
    ended_.assign(rows.ended, rows.ended + rows.num_ended);
    shorts_.assign(rows.shorts, rows.shorts + rows.num_shorts);
    if (std::none_of(found_.begin(), found_.end(), [](const Continuation& one) { return one.ends; })) return;
    const double divisor = std::pow(static_cast<double>(length), rows.length_penalty);
    ranks_.clear();
    for (const Continuation& one : found_)
      if (left(rows, one) == 0) ranks_.push_back(rank(rows, one, divisor));
    std::sort(ranks_.begin(), ranks_.end(), std::greater<>());
    const size_t most = static_cast<size_t>(rows.most_ended);
    if (ranks_.size() > most) ranks_.resize(most);
    for (Continuation& one : found_) {
      if (!one.ends) continue;
      const EndedRow row{rank(rows, one, divisor), -one.negated, length - 1, one.row, one.token, left(rows, one)};
      one.chosen = row.missing == 0 ? row.score >= ranks_.back() : rows.num_ended == 0;
      if (one.chosen) (row.missing == 0 ? ended_ : shorts_).push_back(row);
    }
    std::stable_sort(ended_.begin(), ended_.end(),
                     [](const EndedRow& a, const EndedRow& b) { return a.score > b.score; });
    std::stable_sort(shorts_.begin(), shorts_.end(), [](const EndedRow& a, const EndedRow& b) {
      return a.missing != b.missing ? a.missing < b.missing : a.score > b.score;
    });
    if (ended_.size() > most) ended_.resize(most);
    if (!ended_.empty()) shorts_.clear();
    if (shorts_.size() > static_cast<size_t>(size)) shorts_.resize(static_cast<size_t>(size));
  }

  // True if the search ends with continuations of length `length`.
  bool stops(const TermRows& rows, int64_t length) const {
    if (static_cast<int64_t>(ended_.size()) < rows.most_ended) return false;
    if (rows.stopping == TermRows::kEarly) return true;
    const bool never = rows.stopping == TermRows::kNever;
    const int64_t reachable = never && rows.length_penalty > 0 ? rows.max_length : length;
    const double divisor = std::pow(static_cast<double>(reachable), rows.length_penalty);
    double best = kDeadScore;
    for (const Continuation& one : found_)
      if (one.chosen && !one.ends && (never || left(rows, one) == 0)) best = std::max(best, rank(rows, one, divisor));
    return best <= ended_.back().score;
  }

  static double rank(const TermRows& rows, const Continuation& one, double divisor) {
    return one.merit / divisor + (-one.negated - one.merit) / rows.term_divisor;
  }
  static size_t bank(const TermRows& rows, const Continuation& one) {
    return static_cast<size_t>(rows.state(one.after)[TermRows::kBank]);
  }
  static int32_t left(const TermRows& rows, const Continuation& one) { return rows.state(one.after)[TermRows::kLeft]; }

  std::vector<Continuation> found_;  // best first
  std::vector<int64_t> wanted_, parts_;
  std::vector<double> ranks_;
  std::vector<EndedRow> ended_, shorts_;
  int64_t running_ = 0;
};

}  // namespace jumok
