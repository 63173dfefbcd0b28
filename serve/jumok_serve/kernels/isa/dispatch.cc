// Choice of the best instruction set of this processor.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "isa/gemm.h"
#include "isa/row.h"

namespace jumok {

namespace avx2 {
extern const GemmKernels kGemmKernels;
extern const RowKernels kRowKernels;
}  // namespace avx2
namespace avx512_vnni {
extern const GemmKernels kGemmKernels;
extern const RowKernels kRowKernels;
}  // namespace avx512_vnni

Isa best_isa() {
#if defined(__x86_64__)
  static const Isa best = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
      return Isa::kNone;
    const bool vnni = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
    const char* tested = std::getenv("JUMOK_TEST_KERNELS");  // for tests of AVX2 on a newer processor
    return vnni && (tested == nullptr || std::strcmp(tested, "avx2") != 0) ? Isa::kAvx512Vnni : Isa::kAvx2;
  }();
  return best;
#else
  return Isa::kNone;
#endif
}

const RowKernels* row_kernels() {
#if defined(__x86_64__)
  switch (best_isa()) {
    case Isa::kAvx512Vnni:
      return &avx512_vnni::kRowKernels;
    case Isa::kAvx2:
      return &avx2::kRowKernels;
    case Isa::kNone:
      break;
  }
#endif
  return nullptr;
}

const GemmKernels& gemm_kernels() {
#if defined(__x86_64__)
  static const GemmKernels& best = best_isa() == Isa::kAvx512Vnni ? avx512_vnni::kGemmKernels : avx2::kGemmKernels;
  return best;
#else
  static const GemmKernels none{};
  return none;
#endif
}

void* scratch(size_t bytes) {
  static thread_local std::vector<std::max_align_t> memory;
  const size_t units = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
  if (memory.size() < units) memory.resize(units);
  return memory.data();
}

}  // namespace jumok
