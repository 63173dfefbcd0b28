// Allocator of tensors: each thread has its own arena, which stays in the cache of its core.
#pragma once

#include "runtime/ort_api.h"

namespace jumok {

// Sessions that use their environment's allocator allocate there afterwards.
ort::Status* register_allocator(const ort::Api& api);

}  // namespace jumok
