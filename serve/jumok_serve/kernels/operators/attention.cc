// SelfAttention over a KV cache updated in place, and CrossAttention over keys and values of the encoder.
#include "operators/register.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "isa/row.h"
#include "operators/operator.h"

namespace jumok {
namespace {

using ort::Presence;
using ort::Type;

constexpr int64_t kLine = 64;           // bytes of a cache line
constexpr int64_t kEntriesPerWord = 8;  // entries tested as one number

// Reused memory of this thread.
template <typename Element>
Element* scratch(size_t count) {
  static thread_local std::vector<Element> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

template <typename Element>
void attend(const Attention<Element>& row) {
  if constexpr (std::is_same_v<Element, Half>)
    row_kernels()->attend_half(row);
  else if constexpr (std::is_same_v<Element, Int8>)
    row_kernels()->attend_int8(row);
  else
    row_kernels()->attend(row);
}

// Output of one head's rows: written directly, or quantized from a buffer.
template <bool kQuantized>
class Output {
 public:
  Output(Call& call, const Tensor& query, Quantization quantization)
      : quantization_(quantization), tensor_(call.output(0, query.sizes, query.axes)) {}

  // Computes attention of rows that lie `stride` floats apart in the output, from `place` on.
  template <typename Element>
  void write(Attention<Element> rows, int64_t place, int64_t stride, float* room) const {
    rows.out = kQuantized ? room : tensor_.as<float>() + place;
    rows.out_stride = kQuantized ? rows.width : stride;
    attend(rows);
    if constexpr (kQuantized)
      for (int64_t row = 0; row < rows.rows; ++row)
        row_kernels()->quantize(room + row * rows.width, tensor_.as<uint8_t>() + place + row * stride, rows.width,
                                quantization_);
  }

 private:
  Quantization quantization_;
  Tensor tensor_;
};

struct Heads {
  // `scale_input`: input with the scale of a quantized result, or 0.
  Heads(Settings& settings, size_t scale_input)
      : heads(settings.get<int64_t>("num_heads")), scale(settings.get<float>("scale")) {
    if (scale_input != 0) quantization = settings.quantization<Quantization>(scale_input, scale_input + 1);
    if (heads < 1) settings.fail("there must be at least one head");
  }

  int64_t heads;
  float scale;  // of scores
  Quantization quantization;
};

// Slots of sentences in the KV cache.
class Slots {
 public:
  // `places` [B, K, 3] has the slot first; without places, sentence b has slot b.
  Slots(const Tensor& places, int64_t beams) : places_(places), step_(beams * 3) {}

  int64_t of(int64_t sentence) const { return places_ ? places_.as<int64_t>()[sentence * step_] : sentence; }

  // True if all sentences have a slot; else fails the call.
  bool fit(Call& call, int64_t sentences, int64_t slots) const {
    bool fitting = places_ ? places_.count() == sentences * step_ : sentences == slots;
    for (int64_t i = 0; i < sentences && fitting && step_ > 0; ++i) fitting = 0 <= of(i) && of(i) < slots;
    if (!fitting) call.fail("the number of sentences does not match the slots of the KV cache");
    return fitting;
  }

 private:
  Tensor places_;
  int64_t step_;
};

// True if queries [B, K, heads * width], width > 0, and keys [slots, heads, entries, stride] match; else fails the
// call.
template <typename Element>
bool fit(Call& call, const Tensor& query, const Tensor& key, const Tensor& value, int64_t heads) {
  if (call.failed()) return false;
  const bool fitting = query.axes == 3 && key.axes == 4 && value.axes == 4 && key.sizes[1] == heads &&
                       query.sizes[2] >= heads && query.sizes[2] % heads == 0 &&
                       key.sizes[3] == stride_of<Element>(query.sizes[2] / heads) &&
                       std::memcmp(key.sizes, value.sizes, sizeof key.sizes) == 0;
  if (!fitting) call.fail("queries, keys and values do not fit each other");
  return fitting;
}

// Views keys or values [B, entries, heads * width] by heads.
Tensor in_heads(Tensor keys, int64_t heads) {
  if (keys.axes != 3) return keys;
  const int64_t entries = keys.sizes[1], whole = keys.sizes[2];
  keys.axes = 4;
  keys.sizes[1] = heads;
  keys.sizes[2] = entries;
  keys.sizes[3] = whole / heads;
  return keys;
}

// Prefetches `count` elements of the keys and values of the next heads. Heads are so short that the hardware prefetcher
// is too late: without this, half of the time is spent waiting. Into L2, since L1 has few outstanding requests and
// these are needed for the current heads.
template <typename Element>
void prefetch(const Element* keys, const Element* values, int64_t head_stride, int64_t heads, int64_t count) {
  constexpr int kSecondCache = 2;
  for (int64_t head = 0; head < heads; ++head)
    for (const Element* from : {keys + head * head_stride, values + head * head_stride}) {
      const char *line = reinterpret_cast<const char*>(from), *end = reinterpret_cast<const char*>(from + count);
      for (; line < end; line += kLine) __builtin_prefetch(line, 0, kSecondCache);
    }
}

// Number of heads of one sentence between `first` and `last` to compute in one call.
template <typename Element>
int64_t heads_per_call(bool as_rows, int64_t heads, int64_t first, int64_t last) {
  return as_rows ? std::min({kHeadsPerCall<Element>, heads - first % heads, last - first}) : 1;
}

// Memory of this thread for the rows of a sentence.
struct Workspace {
  Workspace(int64_t beams, int64_t entries, int64_t width) {
    const auto weights_size = static_cast<size_t>(kWorkspacePerEntry * padded(entries));
    const auto mask_size = static_cast<size_t>(beams * padded(entries));
    const auto out_size = static_cast<size_t>(std::max(beams, kHeadsPerCall<Int8>) * width);
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
    const bool of_tokens = key.axes == 3;  // heads of an entry are contiguous
    if (key.axes != value.axes ||
        (of_tokens && (key.sizes[2] % heads != 0 || value.sizes[2] != key.sizes[2] || std::is_same_v<Element, Int8>)))
      return call.fail("queries, keys and values do not fit each other");
    key = in_heads(key, heads);
    value = in_heads(value, heads);
    if (!fit<Element>(call, query, key, value, heads)) return;
    const int64_t sentences = query.sizes[0], beams = query.sizes[1], whole = query.sizes[2];
    const int64_t entries = key.sizes[2], width = whole / heads;
    const int64_t stride = key.sizes[3], head_stride = entries * stride;
    const bool as_rows = beams == 1 && !of_tokens;  // heads are rows, if there is one beam
    const Slots slots(places, beams);
    if (!slots.fit(call, sentences, key.sizes[0])) return;
    if (lengths.count() != sentences) return call.fail("there are not as many lengths as sentences");
    const Output<kQuantized> output(call, query, quantization);
    if (call.failed() || query.count() == 0) return;
    // Offset of a head's keys.
    const auto start = [&](int64_t i) {
      const int64_t slot = slots.of(i / heads), head = i % heads;
      return of_tokens ? slot * entries * whole + head * width : (slot * heads + head) * head_stride;
    };
    call.parallel_for(
        sentences * heads, sentences * heads * head_stride * (1 + beams), [&](int64_t first, int64_t last) {
          const Workspace own(beams, entries, width);
          for (int64_t i = first, together = 1; i < last; i += together) {
            const int64_t sentence = i / heads, head = i % heads;
            together = heads_per_call<Element>(as_rows, heads, i, last);
            const int64_t length = std::clamp(lengths.as<int64_t>()[sentence], int64_t{0}, entries);
            if (i == first || head == 0) {
              std::fill(own.mask, own.mask + length, 0.0f);
              std::fill(own.mask + length, own.mask + padded(length), -INFINITY);
            }
            const int64_t from = start(i);
            const Element *own_keys = key.as<Element>() + from, *own_values = value.as<Element>() + from;
            const int64_t place = sentence * beams * whole + head * width, to_next = as_rows ? width : whole;
            if (const int64_t next = i + together; next < last && !of_tokens) {
              const int64_t at = start(next),
                            count = std::clamp(lengths.as<int64_t>()[next / heads], int64_t{0}, entries);
              prefetch(key.as<Element>() + at, value.as<Element>() + at, head_stride,
                       heads_per_call<Element>(as_rows, heads, next, last), count * stride);
            }
            output.template write<Element>({beams * together,
                                            width,
                                            entries,
                                            query.as<float>() + place,
                                            to_next,
                                            own_keys,
                                            own_values,
                                            of_tokens ? whole : stride,
                                            as_rows ? head_stride : 0,
                                            nullptr,
                                            length,
                                            own.mask,
                                            0,
                                            nullptr,
                                            0,
                                            scale,
                                            own.weights,
                                            nullptr,
                                            0,
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
    const bool as_rows = beams == 1;  // heads are rows, if there is one beam
    const Slots slots(places, beams);
    if (!slots.fit(call, sentences, key.sizes[0])) return;
    if (new_key.count() != query.count() || new_value.count() != query.count())
      return call.fail("there are not as many new keys and values as queries");
    if (visible.count() != key.sizes[0] * beams * entries)
      return call.fail("the visibility does not match the entries of the KV cache");
    if (bias && !fits(bias, sentences, heads, beams, entries))
      return call.fail("the bias does not match the scores of attention");
    const Output<kQuantized> output(call, query, quantization);
    const Tensor keys = next(call, 1, key), values = next(call, 2, value);
    if (call.failed() || query.count() == 0) return;
    const auto visible_of = [&](int64_t sentence) {
      return visible.as<uint8_t>() + slots.of(sentence) * beams * entries;
    };
    // Offset of a head's keys.
    const auto start = [&](int64_t i) { return (slots.of(i / heads) * heads + i % heads) * head_stride; };
    call.parallel_for(
        sentences * heads, sentences * heads * head_stride * (1 + beams), [&](int64_t first, int64_t last) {
          const Workspace own(beams, entries, width);
          int32_t* visible_entries = scratch<int32_t>(static_cast<size_t>(entries));
          int64_t count = 0,
                  // End of the next sentence's entries.
              ahead = end_of_visible(visible_of(first / heads), beams, entries);
          for (int64_t i = first, together = 1; i < last; i += together) {
            const int64_t sentence = i / heads, head = i % heads;
            together = heads_per_call<Element>(as_rows, heads, i, last);
            if (i == first || head == 0)
              count = find_visible(visible_of(sentence), beams, entries, ahead, visible_entries, own.mask);
            const int64_t own_start = start(i);
            Element* own_keys = keys.as<Element>() + own_start;
            Element* own_values = values.as<Element>() + own_start;
            for (int64_t beam = 0; beam < beams; ++beam) {
              const int64_t row = sentence * beams + beam, entry = places.as<int64_t>()[row * 3 + 2];
              if (entry < 0 || entry >= entries) continue;  // not visible to any row
              const int64_t from = row * whole + head * width, to = entry * stride;
              write(new_key.as<float>() + from, width, together, own_keys + to, head_stride);
              write(new_value.as<float>() + from, width, together, own_values + to, head_stride);
            }
            const int64_t place = sentence * beams * whole + head * width, to_next = as_rows ? width : whole;
            if (const int64_t next = i + together; next < last) {
              if (next % heads == 0) ahead = end_of_visible(visible_of(next / heads), beams, entries);
              prefetch(keys.as<Element>() + start(next), values.as<Element>() + start(next), head_stride,
                       heads_per_call<Element>(as_rows, heads, next, last), ahead * stride);
            }
            const int64_t bias_stride = bias && bias.sizes[as_rows ? 1 : 2] > 1 ? entries : 0;
            output.template write<Element>({beams * together,
                                            width,
                                            entries,
                                            query.as<float>() + place,
                                            to_next,
                                            own_keys,
                                            own_values,
                                            stride,
                                            as_rows ? head_stride : 0,
                                            visible_entries,
                                            count,
                                            own.mask,
                                            as_rows ? 0 : padded(count),
                                            first_of(bias, sentence, head),
                                            bias_stride,
                                            scale,
                                            own.weights,
                                            nullptr,
                                            0,
                                            false},
                                           place, to_next, own.out);
          }
        });
  }

 private:
  // Output cache with the content of the input cache; usually they share memory.
  static Tensor next(Call& call, size_t index, const Tensor& cache) {
    const Tensor given_back = call.output(index, cache.sizes, cache.axes);
    if (given_back && given_back.data != cache.data)
      std::memcpy(given_back.data, cache.data, sizeof(Element) * static_cast<size_t>(cache.count()));
    return given_back;
  }

  // Writes contiguous heads to entries that lie `stride` apart.
  static void write(const float* from, int64_t width, int64_t heads, Element* to, int64_t stride) {
    if constexpr (std::is_same_v<Element, Int8>) return row_kernels()->to_int8(from, width, heads, to, stride);
    for (int64_t head = 0; head < heads; ++head, from += width, to += stride) {
      if constexpr (std::is_same_v<Element, Half>)
        row_kernels()->to_half(from, to, width);
      else if constexpr (std::is_same_v<Element, float>)
        std::copy(from, from + width, to);
    }
  }

  // Visibility of eight entries to any row of a sentence: a byte each, 0 or 1, the first entry lowest. A graph may hold
  // other bytes; their lowest bit counts.
  static uint64_t visible_to_any(const uint8_t* visible, int64_t beams, int64_t entries, int64_t first) {
    uint64_t any = 0;
    for (int64_t beam = 0; beam < beams; ++beam) {
      const uint8_t* from = visible + beam * entries + first;
      uint64_t own = 0;
      if (first + kEntriesPerWord <= entries)
        std::memcpy(&own, from, kEntriesPerWord);
      else
        std::memcpy(&own, from, static_cast<size_t>(entries - first));
      any |= own;
    }
    return any & 0x0101010101010101;
  }

  // Number of entries up to the last one that is visible to any row.
  static int64_t end_of_visible(const uint8_t* visible, int64_t beams, int64_t entries) {
    for (int64_t first = (entries - 1) / kEntriesPerWord * kEntriesPerWord; first >= 0; first -= kEntriesPerWord)
      if (const uint64_t any = visible_to_any(visible, beams, entries, first); any != 0)
        return first + kEntriesPerWord - __builtin_clzll(any) / 8;
    return 0;
  }

  // Lists entries before `end` that are visible to any row, and makes the mask of each row.
  static int64_t find_visible(const uint8_t* visible, int64_t beams, int64_t entries, int64_t end,
                              int32_t* visible_entries, float* mask) {
    int64_t count = 0;
    for (int64_t first = 0; first < end; first += kEntriesPerWord)
      for (uint64_t left = visible_to_any(visible, beams, entries, first); left != 0; left &= left - 1)
        visible_entries[count++] = static_cast<int32_t>(first + __builtin_ctzll(left) / 8);
    for (int64_t beam = 0; beam < beams; ++beam, visible += entries, mask += padded(count)) {
      for (int64_t i = 0; i < count; ++i) mask[i] = (visible[visible_entries[i]] & 1) != 0 ? 0.0f : -INFINITY;
      std::fill(mask + count, mask + padded(count), -INFINITY);
    }
    return count;
  }

  static bool fits(const Tensor& bias, int64_t sentences, int64_t heads, int64_t beams, int64_t entries) {
    const auto one_or = [&](size_t axis, int64_t size) { return bias.sizes[axis] == 1 || bias.sizes[axis] == size; };
    return bias.axes == 4 && one_or(0, sentences) && one_or(1, heads) && one_or(2, beams) && bias.sizes[3] == entries;
  }

  // Bias [K or 1, entries] of one head, or null; leading axes may be 1.
  static const float* first_of(const Tensor& bias, int64_t sentence, int64_t head) {
    if (!bias) return nullptr;
    const int64_t own_sentence = bias.sizes[0] == 1 ? 0 : sentence, own_head = bias.sizes[1] == 1 ? 0 : head;
    return bias.as<float>() + (own_sentence * bias.sizes[1] + own_head) * bias.sizes[2] * bias.sizes[3];
  }
};

template <typename Element, bool kQuantized>
void add(std::vector<const ort::CustomOp*>& operators) {
  constexpr bool kHalf = std::is_same_v<Element, Half>, kInt8 = std::is_same_v<Element, Int8>;
  const Argument number{Type::kFloat}, index{Type::kInt64};
  const Argument cache{kHalf ? Type::kHalf : kInt8 ? Type::kInt8 : Type::kFloat};
  const Argument result{kQuantized ? Type::kUint8 : Type::kFloat};
  std::vector<Argument> self{number, number, number, cache, cache, index, {Type::kBool}};
  self.push_back({Type::kFloat, Presence::kOptional});
  std::vector<Argument> cross{number, cache, cache, index};
  if (kQuantized)
    for (auto* inputs : {&self, &cross}) inputs->insert(inputs->end(), {{Type::kFloat}, {Type::kUint8}});
  cross.push_back({Type::kInt64, Presence::kOptional});  // places
  const std::string before = kHalf ? "Half" : kInt8 ? "Int8" : "", after = kQuantized ? "Quantized" : "";
  operators.push_back(
      new Operator<SelfAttention<Element, kQuantized>>(before + "SelfAttention" + after, self, {result, cache, cache}));
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
