// Implementation of RowKernels::advance_ssru.
#pragma once

#include <algorithm>

#include "isa/row.h"
#include "isa/vectors.h"

namespace jumok {
namespace ISA {
namespace {

// 1 / (1 + e^-x)
inline Floats sigmoid(Floats x) {
  const Floats small = exponential(x < 0.0f ? x : -x);  // e^-|x|
  return (x < 0.0f ? small : all(1.0f)) / (small + 1.0f);
}

inline Floats next_cell(Floats forget, Floats cell, Floats candidate) {
  const Floats share = sigmoid(forget);
  return share * cell + (1.0f - share) * candidate;
}

void advance_ssru(const SsruRow& row) {
  const SsruRow own = row;  // a copy, which no store can alias
  int64_t i = 0;
  for (; i + kLanes <= own.width; i += kLanes) {
    const Floats next = next_cell(load(own.forget + i), load(own.cell + i), load(own.candidate + i));
    store(next, own.next + i);
    store(larger(all(0.0f), next), own.output + i);  // NaN stays
  }
  if (const int64_t rest = own.width - i; rest > 0) {
    float forget[kLanes] = {}, cell[kLanes] = {}, candidate[kLanes] = {};
    std::copy_n(own.forget + i, rest, forget);
    std::copy_n(own.cell + i, rest, cell);
    std::copy_n(own.candidate + i, rest, candidate);
    const Floats next = next_cell(load(forget), load(cell), load(candidate));
    store(next, cell);
    store(larger(all(0.0f), next), candidate);
    std::copy_n(cell, rest, own.next + i);
    std::copy_n(candidate, rest, own.output + i);
  }
}

}  // namespace
}  // namespace ISA
}  // namespace jumok
