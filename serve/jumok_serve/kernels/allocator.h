// Memory that graphs are computed in: each thread has an arena of its own, which stays in the cache of its core.
#pragma once

#include "ort.h"

namespace jumok {

// From now on sessions that use the allocator of their environment compute in such memory.
ort::Status* register_allocator(const ort::Api& api);

}  // namespace jumok
