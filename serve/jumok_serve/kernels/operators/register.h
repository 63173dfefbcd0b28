// Registration of the operators, one function a source file.
#pragma once

#include <vector>

#include "runtime/ort_api.h"

namespace jumok {

void add_attention(std::vector<const ort::CustomOp*>& operators);
void add_embedding(std::vector<const ort::CustomOp*>& operators);
void add_kv_entries(std::vector<const ort::CustomOp*>& operators);
void add_layer_norm(std::vector<const ort::CustomOp*>& operators);
void add_listed_logits(std::vector<const ort::CustomOp*>& operators);
void add_listed_product(std::vector<const ort::CustomOp*>& operators);
void add_matmul(std::vector<const ort::CustomOp*>& operators);
void add_select(std::vector<const ort::CustomOp*>& operators);
void add_ssru(std::vector<const ort::CustomOp*>& operators);

}  // namespace jumok
