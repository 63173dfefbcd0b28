// compile for aarch64: -march=armv8.2-a+dotprod+i8mm
// compile for aarch64: -mcpu=generic+dotprod+i8mm
#define ISA neon_i8mm
#define I8MM
#include "isa/neon/vec.h"

#include "isa/gemm_impl.h"
