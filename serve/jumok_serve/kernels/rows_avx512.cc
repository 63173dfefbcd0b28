// compile: -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c
#define LANES 16
#define VECTORS avx512
#include "vector_rows.h"
