// compile: -mavx2 -mfma -mf16c
#define LANES 8
#define ISA avx2
#include "isa/gemm_impl.h"
