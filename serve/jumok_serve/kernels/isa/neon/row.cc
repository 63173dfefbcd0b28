// compile for aarch64: -mcpu=generic+dotprod
#define ISA neon
#include "isa/neon/vec.h"

#include "isa/row_impl.h"
