// The operator of embedding.cc.
#pragma once

#include <vector>

#include "ort.h"

namespace jumok {

void add_embedding(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
