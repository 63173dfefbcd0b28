// Finds the instruction sets of this processor, and chooses the best one that has kernels.
#include "isa/dispatch.h"

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace jumok {

// Weak, as a compiler that does not know an instruction set leaves its sources out.
#define JUMOK_KERNELS(isa)                             \
  namespace isa {                                      \
  extern const GemmKernels kGemmKernels [[gnu::weak]]; \
  extern const RowKernels kRowKernels [[gnu::weak]];   \
  }
#if defined(__x86_64__)
JUMOK_KERNELS(avx512_vnni)
JUMOK_KERNELS(avx_vnni)
JUMOK_KERNELS(avx2)
#elif defined(__aarch64__)
JUMOK_KERNELS(neon_i8mm)
JUMOK_KERNELS(neon)
#endif
JUMOK_KERNELS(portable)

namespace {

#if defined(__x86_64__)

// Features of the processor that the system has enabled. By hand, as some compilers' runtime libraries lack the others'
// functions for this.
class Processor {
 public:
  Processor() {
    constexpr unsigned kSavesRegisters = 1u << 27, kYmm = 0x6, kZmm = 0xe6;
    const Leaf first = leaf(1, 0), seventh = leaf(7, 0), eighth = seventh.eax > 0 ? leaf(7, 1) : Leaf{};
    const unsigned saved = (first.ecx & kSavesRegisters) != 0 ? saved_registers() : 0;
    const auto has = [](unsigned bits, std::initializer_list<int> wanted) {
      for (const int bit : wanted)
        if ((bits >> bit & 1) == 0) return false;
      return true;
    };
    avx2 = (saved & kYmm) == kYmm && has(first.ecx, {12, 28, 29}) && has(seventh.ebx, {5});  // FMA, AVX, F16C; AVX2
    avx_vnni = avx2 && has(eighth.eax, {4});
    // AVX-512 F, DQ, BW, VL; VNNI
    avx512_vnni = avx2 && (saved & kZmm) == kZmm && has(seventh.ebx, {16, 17, 30, 31}) && has(seventh.ecx, {11});
  }

  bool avx2, avx_vnni, avx512_vnni;

 private:
  struct Leaf {
    unsigned eax, ebx, ecx, edx;
  };

  static Leaf leaf(unsigned number, unsigned part) {
    Leaf found{};
    __get_cpuid_count(number, part, &found.eax, &found.ebx, &found.ecx, &found.edx);
    return found;
  }

  // Registers that the system saves when it switches threads.
  static unsigned saved_registers() {
    unsigned low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
  }
};

#endif

std::vector<InstructionSet> find_instruction_sets() {
  std::vector<InstructionSet> found;
  const auto add = [&](const char* name, bool usable, const GemmKernels* gemm, const RowKernels* row) {
    if (gemm != nullptr && row != nullptr) found.push_back({name, usable, gemm, row});
  };
#if defined(__x86_64__)
  const Processor processor;
  add("avx512_vnni", processor.avx512_vnni, &avx512_vnni::kGemmKernels, &avx512_vnni::kRowKernels);
  add("avx_vnni", processor.avx_vnni, &avx_vnni::kGemmKernels, &avx2::kRowKernels);
  add("avx2", processor.avx2, &avx2::kGemmKernels, &avx2::kRowKernels);
#elif defined(__aarch64__)
  constexpr unsigned long kDotProducts = 1ul << 20, kInt8Matrices = 1ul << 13;  // HWCAP_ASIMDDP, HWCAP2_I8MM
  const bool dots = (getauxval(AT_HWCAP) & kDotProducts) != 0;
  add("neon_i8mm", dots && (getauxval(AT_HWCAP2) & kInt8Matrices) != 0, &neon_i8mm::kGemmKernels, &neon::kRowKernels);
  add("neon", dots, &neon::kGemmKernels, &neon::kRowKernels);
#endif
  add("portable", true, &portable::kGemmKernels, &portable::kRowKernels);
  return found;
}

const std::vector<InstructionSet>& instruction_sets() {
  static const auto& lasting = *new std::vector<InstructionSet>(find_instruction_sets());
  return lasting;
}

const InstructionSet* find_best() {
  const char* tested = std::getenv("JUMOK_TEST_KERNELS");  // for tests of older instruction sets on a newer processor
  for (const InstructionSet& each : instruction_sets()) {
    const bool named = std::strcmp(each.name, tested == nullptr ? "portable" : tested) == 0;
    if (each.usable && named == (tested != nullptr)) return &each;
  }
  return nullptr;
}

// Null if there is none.
const InstructionSet* chosen() {
  static const InstructionSet* const one = find_best();
  return one;
}

}  // namespace

const RowKernels* row_kernels() {
  const InstructionSet* const one = chosen();
  return one == nullptr ? nullptr : one->row;
}

const GemmKernels& gemm_kernels() { return *chosen()->gemm; }

void* scratch(size_t bytes) {
  static thread_local std::vector<std::max_align_t> memory;
  const size_t units = (bytes + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t);
  if (memory.size() < units) memory.resize(units);
  return memory.data();
}

}  // namespace jumok

#define JUMOK_EXPORTED extern "C" __attribute__((visibility("default")))

JUMOK_EXPORTED int64_t jumok_instruction_sets(const jumok::InstructionSet** first) {
  *first = jumok::instruction_sets().data();
  return static_cast<int64_t>(jumok::instruction_sets().size());
}

JUMOK_EXPORTED int64_t jumok_has_kernels() { return jumok::row_kernels() != nullptr ? 1 : 0; }
