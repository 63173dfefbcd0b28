// SelfAttention over a cache that stays in place, and CrossAttention over what the encoder made of the sources.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "operator.h"
#include "rows.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

constexpr int64_t kLine = 64;  // bytes of memory that come together
constexpr int64_t kTogether = 8;  // entries that are looked at as one number

// Memory of one thread that calls of kernels use again.
template <typename Element>
Element* scratch(size_t count) {
  static thread_local std::vector<Element> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

template <typename Element>
void attend(const Attention<Element>& row) {
  if constexpr (std::is_same_v<Element, Half>)
    rows()->attend_half(row);
  else if constexpr (std::is_same_v<Element, Int8>)
    rows()->attend_int8(row);
  else
    rows()->attend(row);
}

// Where the rows of one head go: straight to the output, or to levels by way of `room`.
template <bool kQuantized>
class Output {
 public:
  Output(Call& call, const Tensor& query, Levels levels)
      : levels_(levels), tensor_(call.output(0, query.sizes, query.axes)) {}

  // Computes attention of rows that lie `stride` floats apart, the first of them at `place`.
  template <typename Element>
  void write(Attention<Element> rows, int64_t place, int64_t stride, float* room) const {
    rows.out = kQuantized ? room : tensor_.as<float>() + place;
    rows.out_stride = kQuantized ? rows.width : stride;
    attend(rows);
    if constexpr (kQuantized)
      for (int64_t row = 0; row < rows.rows; ++row)
        jumok::rows()->quantize(room + row * rows.width, tensor_.as<uint8_t>() + place + row * stride, rows.width,
                                levels_);
  }

 private:
  Levels levels_;
  Tensor tensor_;
};

struct Heads {
  // `levels` is the place of the inputs that say which levels are given, or 0.
  Heads(Settings& settings, size_t levels)
      : heads(settings.get<int64_t>("num_heads")), scale(settings.get<float>("scale")) {
    if (levels != 0) given = settings.levels<Levels>(levels, levels + 1);
    if (heads < 1) settings.fail("there must be at least one head");
  }

  int64_t heads;
  float scale;  // of scores
  Levels given;
};

// Which slot of keys and values each sentence has.
class Places {
 public:
  // `places` [B, K, 3] begin with them; without places sentence b has slot b.
  Places(const Tensor& places, int64_t beams) : places_(places), step_(beams * 3) {}

  int64_t of(int64_t sentence) const { return places_ ? places_.as<int64_t>()[sentence * step_] : sentence; }

  // Whether there are so many sentences, each of which has one of so many slots.
  bool fit(Call& call, int64_t sentences, int64_t slots) const {
    bool fitting = places_ ? places_.count() == sentences * step_ : sentences == slots;
    for (int64_t i = 0; i < sentences && fitting; ++i) fitting = 0 <= of(i) && of(i) < slots;
    if (!fitting) call.fail("there are other sentences than places in slots of keys and values");
    return fitting;
  }

 private:
  Tensor places_;
  int64_t step_;
};

// Whether queries [B, K, heads * width] and keys [slots, heads, entries, stride] belong together.
template <typename Element>
bool fit(Call& call, const Tensor& query, const Tensor& key, const Tensor& value, int64_t heads) {
  if (call.failed()) return false;
  const bool fitting = query.axes == 3 && key.axes == 4 && value.axes == 4 && key.sizes[1] == heads &&
                       query.sizes[2] % heads == 0 &&
                       key.sizes[3] == stride_of<Element>(query.sizes[2] / heads) &&
                       std::memcmp(key.sizes, value.sizes, sizeof key.sizes) == 0;
  if (!fitting) call.fail("queries, keys and values do not fit each other");
  return fitting;
}

// Keys or values [B, entries, heads * width] by heads, which lie `entry_stride` apart from entry to entry.
Tensor in_heads(Tensor keys, int64_t heads) {
  if (keys.axes != 3) return keys;
  const int64_t entries = keys.sizes[1], whole = keys.sizes[2];
  keys.axes = 4;
  keys.sizes[1] = heads;
  keys.sizes[2] = entries;
  keys.sizes[3] = whole / heads;
  return keys;
}

// Asks memory for the keys and values of heads that come next, `count` entries of each. Most are so short that the
// processor would notice too late by itself which these are, and half of the time would be spent waiting. They are to
// come no closer than the second cache: requests of the first one are few, and those of the heads at hand come last.
template <typename Element>
void ask_for(const Element* keys, const Element* values, int64_t head_stride, int64_t heads, int64_t count) {
  constexpr int kSecondCache = 2;
  for (int64_t head = 0; head < heads; ++head)
    for (const Element* from : {keys + head * head_stride, values + head * head_stride}) {
      const char *line = reinterpret_cast<const char*>(from), *end = reinterpret_cast<const char*>(from + count);
      for (; line < end; line += kLine) __builtin_prefetch(line, 0, kSecondCache);
    }
}

// How many of the heads from `first` to `last` are computed at once, which are of one sentence: several where each
// counts as a row.
template <typename Element>
int64_t heads_at_once(bool as_rows, int64_t heads, int64_t first, int64_t last) {
  return as_rows ? std::min({kHeadsAtOnce<Element>, heads - first % heads, last - first}) : 1;
}

// Memory of one thread for the rows of a sentence.
struct Workspace {
  Workspace(int64_t beams, int64_t entries, int64_t width) {
    const auto weights_size = static_cast<size_t>(kRoomOfEntry * padded(entries));
    const auto mask_size = static_cast<size_t>(beams * padded(entries));
    const auto out_size = static_cast<size_t>(std::max(beams, kHeadsAtOnce<Int8>) * width);
    weights = scratch<float>(weights_size + mask_size + out_size);
    mask = weights + weights_size;
    out = mask + mask_size;
  }

  float *weights, *mask, *out;
};

template <typename Element, bool kQuantized>
class CrossAttention : Heads {
 public:
  explicit CrossAttention(Settings& settings) : Heads(settings, kQuantized ? 4 : 0) {}

  void compute(Call& call) const {
    const Tensor query = call.input(0), lengths = call.input(3), places = call.input(kQuantized ? 6 : 4);
    Tensor key = call.input(1), value = call.input(2);
    const bool of_tokens = key.axes == 3;  // heads of an entry lie side by side
    if (key.axes != value.axes || (of_tokens && (key.sizes[2] % heads != 0 || std::is_same_v<Element, Int8>)))
      return call.fail("queries, keys and values do not fit each other");
    key = in_heads(key, heads);
    value = in_heads(value, heads);
    if (!fit<Element>(call, query, key, value, heads)) return;
    const int64_t sentences = query.sizes[0], beams = query.sizes[1], whole = query.sizes[2];
    const int64_t entries = key.sizes[2], width = whole / heads;
    const int64_t stride = key.sizes[3], head_stride = entries * stride;
    const bool as_rows = beams == 1 && !of_tokens;  // heads, each of which has but one
    const Places slots(places, beams);
    if (!slots.fit(call, sentences, key.sizes[0])) return;
    if (lengths.count() != sentences) return call.fail("there are not as many lengths as sentences");
    const Output<kQuantized> output(call, query, given);
    if (call.failed()) return;
    // Where the keys of a head begin.
    const auto start = [&](int64_t i) {
      const int64_t slot = slots.of(i / heads), head = i % heads;
      return of_tokens ? slot * entries * whole + head * width : (slot * heads + head) * head_stride;
    };
    call.divide(sentences * heads, sentences * heads * head_stride * (1 + beams), [&](int64_t first, int64_t last) {
      const Workspace own(beams, entries, width);
      for (int64_t i = first, together = 1; i < last; i += together) {
        const int64_t sentence = i / heads, head = i % heads;
        together = heads_at_once<Element>(as_rows, heads, i, last);
        const int64_t length = std::clamp(lengths.as<int64_t>()[sentence], int64_t{0}, entries);
        if (i == first || head == 0) {
          std::fill(own.mask, own.mask + length, 0.0f);
          std::fill(own.mask + length, own.mask + padded(length), -INFINITY);
        }
        const int64_t from = start(i);
        const Element *own_keys = key.as<Element>() + from, *own_values = value.as<Element>() + from;
        const int64_t place = sentence * beams * whole + head * width, to_next = as_rows ? width : whole;
        if (const int64_t next = i + together; next < last && !of_tokens) {
          const int64_t at = start(next), count = std::clamp(lengths.as<int64_t>()[next / heads], int64_t{0}, entries);
          ask_for(key.as<Element>() + at, value.as<Element>() + at, head_stride,
                  heads_at_once<Element>(as_rows, heads, next, last), count * stride);
        }
        output.template write<Element>({beams * together, width, entries, query.as<float>() + place, to_next, own_keys,
                                        own_values, of_tokens ? whole : stride, as_rows ? head_stride : 0, nullptr,
                                        length, own.mask, 0, nullptr, 0, scale, own.weights, nullptr, 0,
                                        of_tokens},
                                       place, to_next, own.out);
      }
    });
  }
};

template <typename Element, bool kQuantized>
class SelfAttention : Heads {
 public:
  explicit SelfAttention(Settings& settings) : Heads(settings, kQuantized ? 8 : 0) {}

  void compute(Call& call) const {
    const Tensor query = call.input(0), new_key = call.input(1), new_value = call.input(2);
    const Tensor key = call.input(3), value = call.input(4), places = call.input(5), visible = call.input(6);
    const Tensor bias = call.input(7);
    if (!fit<Element>(call, query, key, value, heads)) return;
    const int64_t sentences = query.sizes[0], beams = query.sizes[1], whole = query.sizes[2];
    const int64_t entries = key.sizes[2], width = whole / heads;
    const int64_t stride = key.sizes[3], head_stride = entries * stride;
    const bool as_rows = beams == 1;  // heads, each of which has but one
    const Places slots(places, beams);
    if (!slots.fit(call, sentences, key.sizes[0])) return;
    if (new_key.count() != query.count() || new_value.count() != query.count())
      return call.fail("there are not as many new keys and values as queries");
    if (visible.count() != key.sizes[0] * beams * entries)
      return call.fail("there are other entries than said to be visible or not");
    const Output<kQuantized> output(call, query, given);
    const Tensor keys = next(call, 1, key), values = next(call, 2, value);
    if (call.failed()) return;
    const auto visible_of = [&](int64_t sentence) {
      return visible.as<bool>() + slots.of(sentence) * beams * entries;
    };
    // Where the keys of a head begin.
    const auto start = [&](int64_t i) { return (slots.of(i / heads) * heads + i % heads) * head_stride; };
    call.divide(sentences * heads, sentences * heads * head_stride * (1 + beams), [&](int64_t first, int64_t last) {
      const Workspace own(beams, entries, width);
      int32_t* seen = scratch<int32_t>(static_cast<size_t>(entries));
      int64_t count = 0, ahead = end_of_seen(visible_of(first / heads), beams, entries);  // of those that come next
      for (int64_t i = first, together = 1; i < last; i += together) {
        const int64_t sentence = i / heads, head = i % heads;
        together = heads_at_once<Element>(as_rows, heads, i, last);
        if (i == first || head == 0)
          count = find_seen(visible_of(sentence), beams, entries, ahead, seen, own.mask);
        const int64_t own_start = start(i);
        Element* own_keys = keys.as<Element>() + own_start;
        Element* own_values = values.as<Element>() + own_start;
        for (int64_t beam = 0; beam < beams; ++beam) {
          const int64_t row = sentence * beams + beam, entry = places.as<int64_t>()[row * 3 + 2];
          if (entry < 0 || entry >= entries) continue;  // nobody sees it
          const int64_t from = row * whole + head * width, to = entry * stride;
          write(new_key.as<float>() + from, width, together, own_keys + to, head_stride);
          write(new_value.as<float>() + from, width, together, own_values + to, head_stride);
        }
        const int64_t place = sentence * beams * whole + head * width, to_next = as_rows ? width : whole;
        if (const int64_t next = i + together; next < last) {
          if (next % heads == 0) ahead = end_of_seen(visible_of(next / heads), beams, entries);
          ask_for(keys.as<Element>() + start(next), values.as<Element>() + start(next), head_stride,
                  heads_at_once<Element>(as_rows, heads, next, last), ahead * stride);
        }
        const int64_t bias_stride = bias && bias.sizes[as_rows ? 1 : 2] > 1 ? entries : 0;
        output.template write<Element>(
            {beams * together, width, entries, query.as<float>() + place, to_next, own_keys, own_values, stride,
             as_rows ? head_stride : 0, seen, count, own.mask, as_rows ? 0 : padded(count),
             first_of(bias, sentence, head), bias_stride, scale, own.weights, nullptr, 0, false},
            place, to_next, own.out);
      }
    });
  }

 private:
  // The cache that is given back, with what the one that was given has: most often they are one.
  static Tensor next(Call& call, size_t index, const Tensor& cache) {
    const Tensor given_back = call.output(index, cache.sizes, cache.axes);
    if (given_back && given_back.data != cache.data)
      std::memcpy(given_back.data, cache.data, sizeof(Element) * static_cast<size_t>(cache.count()));
    return given_back;
  }

  // Writes heads, which lie side by side, to entries that lie `stride` apart.
  static void write(const float* from, int64_t width, int64_t heads, Element* to, int64_t stride) {
    if constexpr (std::is_same_v<Element, Int8>) return rows()->to_int8(from, width, heads, to, stride);
    for (int64_t head = 0; head < heads; ++head, from += width, to += stride) {
      if constexpr (std::is_same_v<Element, Half>)
        rows()->to_half(from, to, width);
      else if constexpr (std::is_same_v<Element, float>)
        std::copy(from, from + width, to);
    }
  }

  // Of eight entries, which of them any of a sentence's rows sees: a byte each, 0 or 1, the first entry's the lowest.
  static uint64_t seen_by_any(const bool* visible, int64_t beams, int64_t entries, int64_t first) {
    uint64_t any = 0;
    for (int64_t beam = 0; beam < beams; ++beam) {
      const bool* from = visible + beam * entries + first;
      uint64_t own = 0;
      if (first + kTogether <= entries)
        std::memcpy(&own, from, kTogether);
      else
        std::memcpy(&own, from, static_cast<size_t>(entries - first));
      any |= own;
    }
    return any;
  }

  // How many entries there are up to the last one that any of a sentence's rows sees.
  static int64_t end_of_seen(const bool* visible, int64_t beams, int64_t entries) {
    for (int64_t first = (entries - 1) / kTogether * kTogether; first >= 0; first -= kTogether)
      if (const uint64_t any = seen_by_any(visible, beams, entries, first); any != 0)
        return first + kTogether - __builtin_clzll(any) / 8;
    return 0;
  }

  // The entries before `end` that any of a sentence's rows sees, and the mask that says which of them does.
  static int64_t find_seen(const bool* visible, int64_t beams, int64_t entries, int64_t end, int32_t* seen,
                           float* mask) {
    int64_t count = 0;
    for (int64_t first = 0; first < end; first += kTogether)
      for (uint64_t left = seen_by_any(visible, beams, entries, first); left != 0; left &= left - 1)
        seen[count++] = static_cast<int32_t>(first + __builtin_ctzll(left) / 8);
    for (int64_t beam = 0; beam < beams; ++beam, visible += entries, mask += padded(count)) {
      for (int64_t i = 0; i < count; ++i) mask[i] = visible[seen[i]] ? 0.0f : -INFINITY;
      std::fill(mask + count, mask + padded(count), -INFINITY);
    }
    return count;
  }

  // The bias [K or 1, entries] of one head, or null; the axes before may be 1 too.
  static const float* first_of(const Tensor& bias, int64_t sentence, int64_t head) {
    if (!bias) return nullptr;
    const int64_t own_sentence = bias.sizes[0] == 1 ? 0 : sentence, own_head = bias.sizes[1] == 1 ? 0 : head;
    return bias.as<float>() + (own_sentence * bias.sizes[1] + own_head) * bias.sizes[2] * bias.sizes[3];
  }
};

template <typename Element, bool kQuantized>
void add(std::vector<const ort::CustomOp*>& operators) {
  constexpr bool kHalf = std::is_same_v<Element, Half>, kInt8 = std::is_same_v<Element, Int8>;
  const Slot number{Type::kFloat}, index{Type::kInt64};
  const Slot cache{kHalf ? Type::kHalf : kInt8 ? Type::kInt8 : Type::kFloat};
  const Slot result{kQuantized ? Type::kUint8 : Type::kFloat};
  std::vector<Slot> self{number, number, number, cache, cache, index, {Type::kBool}};
  self.push_back({Type::kFloat, Presence::kOptional});
  std::vector<Slot> cross{number, cache, cache, index};
  if (kQuantized)
    for (auto* inputs : {&self, &cross}) inputs->insert(inputs->end(), {{Type::kFloat}, {Type::kUint8}});
  cross.push_back({Type::kInt64, Presence::kOptional});  // places
  const std::string before = kHalf ? "Half" : kInt8 ? "Int8" : "", after = kQuantized ? "Quantized" : "";
  operators.push_back(new Operator<SelfAttention<Element, kQuantized>>(before + "SelfAttention" + after, self,
                                                                       {result, cache, cache}));
  operators.push_back(
      new Operator<CrossAttention<Element, kQuantized>>(before + "CrossAttention" + after, cross, {result}));
}

}  // namespace

void add_attention(std::vector<const ort::CustomOp*>& operators) {
  add<float, false>(operators);
  add<float, true>(operators);
  add<Half, false>(operators);
  add<Half, true>(operators);
  add<Int8, false>(operators);
  add<Int8, true>(operators);
}

}  // namespace jumok
