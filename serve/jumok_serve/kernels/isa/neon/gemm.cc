// compile for aarch64: -mcpu=generic+dotprod
#define ISA neon
#include "isa/neon/vec.h"

#include "isa/gemm_impl.h"
