// compile: -ffp-contract=off
#define ISA portable
#include "isa/portable/vec.h"

#include "isa/row_impl.h"
