// compile: -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c
#define LANES 16
#define ISA avx512_vnni
#include "isa/row_impl.h"
