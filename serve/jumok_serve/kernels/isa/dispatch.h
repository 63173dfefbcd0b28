// Instruction sets that have kernels.
#pragma once

#include <cstdint>

#include "isa/gemm.h"
#include "isa/row.h"

namespace jumok {

struct InstructionSet {
  const char* name;
  bool usable;  // on this processor
  const GemmKernels* gemm;
  const RowKernels* row;
};

}  // namespace jumok

// Returns the number of instruction sets that this library has kernels for, and the first of them, best first. The last
// one, "portable", is usable everywhere, but chosen for tests only: ONNX Runtime's own operators are faster.
extern "C" int64_t jumok_instruction_sets(const jumok::InstructionSet** first);

// Returns 1 if kernels are chosen: those of the best usable instruction set, or of that in JUMOK_TEST_KERNELS; else 0.
// The functions for Python need none.
extern "C" int64_t jumok_has_kernels();
