// The operators that multiply with constant weights in 8 bits.
#pragma once

#include <vector>

#include "ort.h"

namespace jumok {

void add_products(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
