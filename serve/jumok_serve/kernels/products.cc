// Which of the instruction sets that there are products for this processor has.
#include "products.h"

#include <vector>

#include "rows.h"

namespace jumok {

namespace avx2 {
extern const Products kProducts;
}
namespace vnni {
extern const Products kProducts;
}

void* scratch(size_t bytes) {
  static thread_local std::vector<std::max_align_t> memory;
  const size_t units = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
  if (memory.size() < units) memory.resize(units);
  return memory.data();
}

const Products& products() {
#if defined(__x86_64__)
  static const Products& best = widest() == Vectors::kAvx512 ? vnni::kProducts : avx2::kProducts;
  return best;
#else
  static const Products none{};
  return none;
#endif
}

}  // namespace jumok
