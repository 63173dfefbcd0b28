// compile for x86_64: -mavx2 -mfma -mf16c -mavxvnni
#define ISA avx_vnni
#define AVX_VNNI
#include "isa/avx2/vec.h"

#include "isa/gemm_impl.h"
