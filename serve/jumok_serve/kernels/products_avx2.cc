// compile: -mavx2 -mfma -mf16c
#define LANES 8
#define VECTORS avx2
#include "vector_products.h"
