// Which of the instruction sets that there are products for this processor has.
#include "products.h"

#include "rows.h"

namespace jumok {

namespace avx2 {
extern const Products kProducts;
}
namespace vnni {
extern const Products kProducts;
}

const Products& products() {
#if defined(__x86_64__)
  static const Products& best =
      widest() == Vectors::kAvx512 && __builtin_cpu_supports("avx512vnni") ? vnni::kProducts : avx2::kProducts;
  return best;
#else
  static const Products none{};
  return none;
#endif
}

}  // namespace jumok
