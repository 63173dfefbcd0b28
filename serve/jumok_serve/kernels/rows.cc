// Which of the instruction sets that there are functions for this processor has.
#include "rows.h"

#include <cstdlib>
#include <cstring>

namespace jumok {

namespace avx2 {
extern const Rows kRows;
}
namespace avx512 {
extern const Rows kRows;
}

Vectors widest() {
#if defined(__x86_64__)
  static const Vectors found = [] {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !__builtin_cpu_supports("f16c"))
      return Vectors::kNone;
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512vnni");
    const char* tested = std::getenv("JUMOK_TEST_KERNELS");  // so that tests see the others on a new processor, too
    return wide && (tested == nullptr || std::strcmp(tested, "avx2") != 0) ? Vectors::kAvx512 : Vectors::kAvx2;
  }();
  return found;
#else
  return Vectors::kNone;
#endif
}

const Rows* rows() {
#if defined(__x86_64__)
  return widest() == Vectors::kNone ? nullptr : widest() == Vectors::kAvx512 ? &avx512::kRows : &avx2::kRows;
#else
  return nullptr;
#endif
}

}  // namespace jumok
