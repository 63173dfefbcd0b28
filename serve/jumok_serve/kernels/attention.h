// The operators of attention.cc.
#pragma once

#include <vector>

#include "ort.h"

namespace jumok {

void add_attention(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
