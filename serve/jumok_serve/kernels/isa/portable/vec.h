// Traits of the compiler's vector extensions alone: the same results on every processor.
#pragma once

namespace jumok {
namespace ISA {
namespace {
constexpr int kLanes = 4;
}
}  // namespace ISA
}  // namespace jumok

#include "isa/vector_extensions.h"

namespace jumok {
namespace ISA {
namespace {

struct Vec : VectorExtensions {};

}  // namespace
}  // namespace ISA
}  // namespace jumok
