// compile for x86_64: -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c
#define ISA avx512_vnni
#include "isa/avx512_vnni/int8_attention.h"
#include "isa/avx512_vnni/vec.h"

#include "isa/row_impl.h"
