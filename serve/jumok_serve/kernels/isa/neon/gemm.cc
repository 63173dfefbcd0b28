// compile for aarch64: -march=armv8.2-a+dotprod
// compile for aarch64: -mcpu=generic+dotprod
#define ISA neon
#include "isa/neon/vec.h"

#include "isa/gemm_impl.h"
