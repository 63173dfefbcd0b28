// The operator of entries.cc.
#pragma once

#include <vector>

#include "ort.h"

namespace jumok {

void add_entries(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
