// SelfAttention over a cache that stays in place, and CrossAttention over what the encoder made of the sources.
#include "attention.h"

#include <algorithm>
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
  else
    rows()->attend(row);
}

Levels read_levels(Call& call, size_t scale, size_t zero_point) {
  const Tensor one = call.input(scale), zero = call.input(zero_point);
  if (!one || !zero) {
    call.fail("a quantized output needs a scale and a zero point");
    return {};
  }
  return {*one.as<float>(), *zero.as<uint8_t>()};
}

// Where the heads of a row's output go.
template <bool kQuantized>
class Output {
 public:
  Output(Call& call, const Tensor& query, size_t scale, size_t zero_point) {
    if constexpr (kQuantized) levels_ = read_levels(call, scale, zero_point);
    tensor_ = call.output(0, query.sizes, query.axes);
  }

  // `make` fills a head's numbers.
  template <typename Make>
  void write(int64_t place, int64_t width, float* room, Make make) const {
    if constexpr (kQuantized) {
      make(room);
      rows()->quantize(room, tensor_.as<uint8_t>() + place, width, levels_);
    } else {
      make(tensor_.as<float>() + place);
    }
  }

 private:
  Levels levels_;
  Tensor tensor_;
};

struct Heads {
  explicit Heads(Settings& settings)
      : heads(settings.get<int64_t>("num_heads")), scale(settings.get<float>("scale")) {}

  int64_t heads;
  float scale;  // of scores
};

// Whether queries [B, K, heads * width] and keys [B, heads, entries, width] belong together.
bool fit(Call& call, const Tensor& query, const Tensor& key, const Tensor& value, int64_t heads) {
  if (call.failed()) return false;
  const bool fitting = query.axes == 3 && key.axes == 4 && value.axes == 4 && key.sizes[0] == query.sizes[0] &&
                       key.sizes[1] == heads && heads * key.sizes[3] == query.sizes[2] &&
                       std::memcmp(key.sizes, value.sizes, sizeof key.sizes) == 0;
  if (!fitting) call.fail("queries, keys and values do not fit each other");
  return fitting;
}

// Asks memory for the next head's first keys and values while this one is computed: most heads are so short that the
// processor would notice too late by itself, and then half of the time is spent waiting.
template <typename Element>
void prefetch(const Element* keys, const Element* values, int64_t count) {
  constexpr int64_t kMost = 8192, kLine = 64;  // bytes
  const int64_t bytes = std::min(static_cast<int64_t>(sizeof(Element)) * count, kMost);
  for (const Element* from : {keys, values}) {
    const char* first = reinterpret_cast<const char*>(from);
    for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(first + i);
  }
}

size_t rounded_up(int64_t count) { return static_cast<size_t>((count + 15) / 16 * 16); }

template <typename Element, bool kQuantized>
class CrossAttention : Heads {
 public:
  explicit CrossAttention(Settings& settings) : Heads(settings) {}

  void compute(Call& call) const {
    const Tensor query = call.input(0), key = call.input(1), value = call.input(2), lengths = call.input(3);
    if (!fit(call, query, key, value, heads)) return;
    const int64_t sentences = query.sizes[0], beams = query.sizes[1], whole = query.sizes[2];
    const int64_t entries = key.sizes[2], width = key.sizes[3];
    if (lengths.count() != sentences) return call.fail("there are not as many lengths as sentences");
    const Output<kQuantized> output(call, query, 4, 5);
    if (call.failed()) return;
    call.divide(sentences * heads, key.count() * (1 + beams), [&](int64_t first, int64_t last) {
      float* room = scratch<float>(rounded_up(entries) + static_cast<size_t>(width));
      for (int64_t i = first; i < last; ++i) {
        const int64_t sentence = i / heads, head = i % heads;
        const int64_t length = lengths.as<int64_t>()[sentence];
        if (i + 1 < last) {
          const int64_t next = (i + 1) * entries * width;
          prefetch(key.as<Element>() + next, value.as<Element>() + next, length * width);
        }
        for (int64_t beam = 0; beam < beams; ++beam) {
          const int64_t place = (sentence * beams + beam) * whole + head * width;
          output.write(place, width, room + rounded_up(entries), [&](float* out) {
            if (length < 1 || length > entries) return std::fill(out, out + width, 0.0f);
            attend<Element>({width, query.as<float>() + place, key.as<Element>() + i * entries * width,
                             value.as<Element>() + i * entries * width, nullptr, length, nullptr, scale, room, out});
          });
        }
      }
    });
  }
};

template <typename Element, bool kQuantized>
class SelfAttention : Heads {
 public:
  explicit SelfAttention(Settings& settings) : Heads(settings) {}

  void compute(Call& call) const {
    const Tensor query = call.input(0), new_key = call.input(1), new_value = call.input(2);
    const Tensor key = call.input(3), value = call.input(4), places = call.input(5), visible = call.input(6);
    const Tensor bias = call.input(7);
    if (!fit(call, query, key, value, heads)) return;
    const int64_t sentences = query.sizes[0], beams = query.sizes[1], whole = query.sizes[2];
    const int64_t entries = key.sizes[2], width = key.sizes[3];
    if (new_key.count() != query.count() || new_value.count() != query.count() ||
        places.count() != sentences * beams * 3 || visible.count() != sentences * beams * entries)
      return call.fail("there are not as many new keys, new values, places and rows of what is visible as queries");
    const Output<kQuantized> output(call, query, 8, 9);
    const Tensor keys = next(call, 1, key), values = next(call, 2, value);
    if (call.failed()) return;
    call.divide(sentences * heads, key.count() * (1 + beams), [&](int64_t first, int64_t last) {
      float* room = scratch<float>(rounded_up(entries) + static_cast<size_t>(width));
      int32_t* seen = scratch<int32_t>(static_cast<size_t>(beams * (entries + 1)));
      int32_t* counts = seen + beams * entries;
      for (int64_t i = first; i < last; ++i) {
        const int64_t sentence = i / heads, head = i % heads;
        if (i == first || head == 0)
          find_seen(visible.as<bool>() + sentence * beams * entries, beams, entries, seen, counts);
        Element* own_keys = keys.as<Element>() + i * entries * width;
        Element* own_values = values.as<Element>() + i * entries * width;
        if (i + 1 < last)
          prefetch(own_keys + entries * width, own_values + entries * width, (counts[0] + beams - 1) * width);
        for (int64_t beam = 0; beam < beams; ++beam) {
          const int64_t row = sentence * beams + beam, entry = places.as<int64_t>()[row * 3 + 2];
          if (entry < 0 || entry >= entries) continue;  // nobody sees it
          write(new_key.as<float>() + row * whole + head * width, own_keys + entry * width, width);
          write(new_value.as<float>() + row * whole + head * width, own_values + entry * width, width);
        }
        for (int64_t beam = 0; beam < beams; ++beam) {
          const int64_t place = (sentence * beams + beam) * whole + head * width;
          output.write(place, width, room + rounded_up(entries), [&](float* out) {
            if (counts[beam] == 0) return std::fill(out, out + width, 0.0f);
            attend<Element>({width, query.as<float>() + place, own_keys, own_values, seen + beam * entries,
                             counts[beam], row_of(bias, sentence, head, beam), scale, room, out});
          });
        }
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

  static void write(const float* from, Element* to, int64_t width) {
    if constexpr (std::is_same_v<Element, Half>)
      rows()->to_half(from, to, width);
    else
      std::copy(from, from + width, to);
  }

  static void find_seen(const bool* visible, int64_t beams, int64_t entries, int32_t* seen, int32_t* counts) {
    for (int64_t beam = 0; beam < beams; ++beam) {
      int32_t count = 0;
      for (int64_t entry = 0; entry < entries; ++entry) {
        seen[beam * entries + count] = static_cast<int32_t>(entry);
        count += visible[beam * entries + entry];
      }
      counts[beam] = count;
    }
  }

  // The bias [entries] of one row; its first three axes may be 1.
  static const float* row_of(const Tensor& bias, int64_t sentence, int64_t head, int64_t beam) {
    if (!bias) return nullptr;
    const auto at = [&](size_t axis, int64_t index) { return bias.sizes[axis] == 1 ? 0 : index; };
    return bias.as<float>() +
           ((at(0, sentence) * bias.sizes[1] + at(1, head)) * bias.sizes[2] + at(2, beam)) * bias.sizes[3];
  }
};

template <typename Element, bool kQuantized>
void add(std::vector<const ort::CustomOp*>& operators) {
  constexpr bool kHalf = std::is_same_v<Element, Half>;
  const Slot number{Type::kFloat}, cache{kHalf ? Type::kHalf : Type::kFloat}, index{Type::kInt64};
  const Slot result{kQuantized ? Type::kUint8 : Type::kFloat};
  std::vector<Slot> self{number, number, number, cache, cache, index, {Type::kBool}};
  self.push_back({Type::kFloat, Presence::kOptional});
  std::vector<Slot> cross{number, cache, cache, index};
  if (kQuantized)
    for (auto* inputs : {&self, &cross}) inputs->insert(inputs->end(), {{Type::kFloat}, {Type::kUint8}});
  const std::string before = kHalf ? "Half" : "", after = kQuantized ? "Quantized" : "";
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
}

}  // namespace jumok
