// Compares the kernels of every usable instruction set with the portable ones, without ONNX Runtime and Python.
//
// Arguments: the library, and instruction sets that must be usable here; others are skipped if they are not. Where only
// the order or fusion of float operations differs, errors are counted in units in the last place (ulps) of the largest
// number of a result.
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "isa/dispatch.h"
#include "isa/overflow_groups.h"
#include "kernel_results.h"

namespace {

const jumok::InstructionSet* chosen = nullptr;

}  // namespace

// The library's are hidden; these are for the packing of weights, which this program compiles again.
const jumok::RowKernels* jumok::row_kernels() { return chosen->row; }
const jumok::GemmKernels& jumok::gemm_kernels() { return *chosen->gemm; }

namespace {

// Groups hold each chunk once, and no int16 sum of theirs overflows.
void check_overflow_groups() {
  Random random(8);
  constexpr int64_t kChunk = 4;
  for (const int64_t columns : {8, 16})
    for (const int most : {3, 20, 60, 127}) {
      const int64_t chunks = 37, size = kChunk * columns;
      const auto given = random.wholes<int8_t>(chunks * size, -most, most);
      auto panel = given;
      std::vector<int32_t> offsets(static_cast<size_t>(chunks));
      const auto groups = jumok::form_overflow_groups(panel.data(), chunks, columns, offsets.data());
      auto sorted = offsets;
      std::sort(sorted.begin(), sorted.end());
      for (int64_t i = 0; i < chunks; ++i)
        if (sorted[static_cast<size_t>(i)] != i * kChunk) fail("overflow groups do not hold each chunk once");
      if (groups.in_triples % 3 != 0 || groups.in_pairs % 2 != 0 || groups.chunks() > chunks)
        fail("overflow groups are not whole");
      if (most == 3 && groups.chunks() == 0) fail("small weights form no overflow groups");
      for (int64_t first = 0; first < groups.chunks();) {
        const int64_t last = first + (first < groups.in_triples ? 3 : 2);
        for (int64_t pair = 0; pair < size; pair += 2) {
          int positive = 0, negative = 0;
          for (int64_t chunk = first; chunk < last; ++chunk)
            for (int64_t i = pair; i < pair + 2; ++i) {
              const int weight = given[static_cast<size_t>(offsets[static_cast<size_t>(chunk)] / kChunk * size + i)];
              (weight > 0 ? positive : negative) += weight;
            }
          if (positive > 128 || negative < -128) fail("an overflow group overflows");
        }
        first = last;
      }
    }
}

struct Check {
  const char* name;
  Results (*compute)();
  double most_ulps;
  double most_ulps_avx512 = most_ulps;  // AVX-512 rounds queries and weights to integers
};

const std::vector<Check> kChecks = {
    {"int8 products", int8_products, 0},
    {"float products of whole numbers", float_products_of_whole_numbers, 0},
    {"products with activations", products_with_activations, 40},
    {"attention", attention<float>, 64},
    {"attention over halves", attention<Half>, 64},
    {"attention over int8", attention<Int8>, 64, 1 << 12},
    {"halves", halves, 0},
    {"quantized rows", quantized_rows, 0},
    {"norms", norms, 20},
    {"recurrent units", recurrent_units, 4},
    {"log-sum-exps", log_sum_exps, 4},
};

// Distance of results in ulps of the largest number of each block; infinite if NaN or infinity differ.
double distance(const Results& found, const Results& expected) {
  double most = 0;
  for (size_t i = 0; i < expected.blocks.size(); ++i) {
    double scale = 1e-30;
    for (const float number : expected.blocks[i])
      if (std::isfinite(number)) scale = std::max(scale, std::abs(static_cast<double>(number)));
    for (size_t j = 0; j < expected.blocks[i].size(); ++j) {
      const float a = found.blocks[i][j], b = expected.blocks[i][j];
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      const double ulps = std::abs(static_cast<double>(a) - b) / (scale * 0x1p-23);
      most = std::max(most, std::isfinite(ulps) ? ulps : std::numeric_limits<double>::infinity());
    }
  }
  return most;
}

// True if all usable instruction sets but the last agree with it.
bool agree(const jumok::InstructionSet* all, int64_t size) {
  bool equal = true;
  for (const Check& check : kChecks) {
    chosen = all + size - 1;
    const Results expected = check.compute();
    for (int64_t i = 0; i < size - 1; ++i) {
      if (!all[i].usable) continue;
      chosen = all + i;
      const double ulps = distance(check.compute(), expected);
      std::printf("%s: %s: %g ulps\n", chosen->name, check.name, ulps);
      const bool rounds = chosen->name == std::string("avx512_vnni");
      equal = equal && ulps <= (rounds ? check.most_ulps_avx512 : check.most_ulps);
    }
  }
  return equal;
}

template <typename Function>
Function* found_in(void* library, const char* name) {
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  if (function == nullptr) fail(dlerror());
  return reinterpret_cast<Function*>(function);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) fail("name a library");
  void* const library = dlopen(arguments[1], RTLD_NOW);
  const jumok::InstructionSet* all = nullptr;
  const int64_t size = found_in<decltype(jumok_instruction_sets)>(library, "jumok_instruction_sets")(&all);
  const std::set<std::string> needed(arguments + 2, arguments + count);
  std::set<std::string> usable;
  for (int64_t i = 0; i < size; ++i)
    if (all[i].usable) usable.insert(all[i].name);
  if (!std::includes(usable.begin(), usable.end(), needed.begin(), needed.end()))
    fail("this processor does not have all instruction sets that are named, or the library has no kernels for them");
  const bool has_kernels = found_in<decltype(jumok_has_kernels)>(library, "jumok_has_kernels")() == 1;
  if (has_kernels != (usable.size() > 1)) fail("kernels are chosen without an instruction set, or not with one");
  check_overflow_groups();
  for (int64_t i = 0; i < size; ++i)
    if (!all[i].usable) std::printf("%s: skipped, as this processor does not have it\n", all[i].name);
  if (!agree(all, size)) fail("results differ from those of the portable kernels");
}
