// The operators of select.cc.
#pragma once

#include <vector>

#include "ort.h"

namespace jumok {

void add_select(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
