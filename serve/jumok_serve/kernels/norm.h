// The operators of norm.cc.
#pragma once

#include <vector>

#include "ort.h"

namespace jumok {

void add_norm(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
