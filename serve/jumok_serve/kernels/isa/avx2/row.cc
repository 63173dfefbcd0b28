// compile for x86_64: -mavx2 -mfma -mf16c
#define ISA avx2
#include "isa/avx2/vec.h"

#include "isa/row_impl.h"
