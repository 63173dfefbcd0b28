// What an arena promises, checked from outside; says on standard error what does not hold.
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/arena.h"

using jumok::Arena;

namespace {

constexpr size_t kMiB = size_t{1} << 20, kRegion = 256 * kMiB;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

size_t resident() {
  size_t all = 0, pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  expect(file != nullptr && std::fscanf(file, "%zu %zu", &all, &pages) == 2, "statm cannot be read");
  std::fclose(file);
  return pages * 4096;
}

bool is_mapped(void* memory) {
  unsigned char held = 0;
  return mincore(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) / 4096 * 4096), 1, &held) == 0;
}

// Blocks hold what was written to them while others come and go, and are one block again in the end.
void exchange(Arena& arena, unsigned seed) {
  std::mt19937 random(seed);
  std::map<unsigned char*, std::pair<size_t, unsigned char>> held;
  const auto give_back = [&](auto each) {
    for (size_t i = 0; i < each->second.first; ++i)
      expect(each->first[i] == each->second.second, "a block was overwritten");
    Arena::give_back(each->first);
    held.erase(each);
  };
  for (int step = 0; step < 20000; ++step) {
    if (held.size() < 40 && random() % 2 == 0) {
      const size_t bytes = random() % (random() % 8 == 0 ? 300000 : 2000);
      auto* const memory = static_cast<unsigned char*>(arena.take(bytes));
      const auto mark = static_cast<unsigned char>(random());
      expect(reinterpret_cast<uintptr_t>(memory) % 64 == 0, "a block is not at a multiple of 64");
      std::memset(memory, mark, bytes);
      held[memory] = {bytes, mark};
    } else if (!held.empty()) {
      give_back(std::next(held.begin(), static_cast<long>(random() % held.size())));
    }
  }
  while (!held.empty()) give_back(held.begin());
}

void joins() {
  Arena arena(Arena::Unused::kKept);
  void* const first = arena.take(1);
  Arena::give_back(first);
  exchange(arena, 0);
  void* const all = arena.take(kRegion - 64);
  expect(all == first, "what was given back is not one block");
  Arena::give_back(all);
}

void takes_the_first_place() {
  Arena arena(Arena::Unused::kKept);
  void* const low = arena.take(1000);
  void* const middle = arena.take(100);
  void* const high = arena.take(5000);
  void* const end = arena.take(100);
  Arena::give_back(low);
  Arena::give_back(high);
  expect(arena.take(900) == low, "a later place was taken");
  expect(arena.take(2000) == high, "a place was taken that is too small, or none that is free");
  Arena::give_back(middle);
  Arena::give_back(end);
}

void takes_older_regions_first() {
  Arena arena(Arena::Unused::kKept);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(arena.take(kRegion / 2 + kMiB));
  for (void* block : blocks) Arena::give_back(block);
  for (void* block : blocks) expect(arena.take(kRegion / 2 + kMiB) == block, "a newer region was taken");
  for (void* block : blocks) Arena::give_back(block);
}

void serves_many_threads() {
  Arena arena(Arena::Unused::kKept);
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed < 5; ++seed) threads.emplace_back([&arena, seed] { exchange(arena, seed); });
  for (std::thread& thread : threads) thread.join();
}

void returns_what_is_unused() {
  Arena kept(Arena::Unused::kKept), returned(Arena::Unused::kReturned);
  for (Arena* arena : {&kept, &returned}) {
    void* const memory = arena->take(64 * kMiB);
    std::memset(memory, 1, 64 * kMiB);
    const size_t full = resident();
    Arena::give_back(memory);
    const bool shrank = resident() + 60 * kMiB < full;
    expect(shrank == (arena == &returned), "free memory is not where it should be");
    arena->return_unused();
    expect(resident() + 60 * kMiB < full, "free memory was not returned");
  }
}

void unmaps_what_is_large() {
  Arena arena(Arena::Unused::kKept);
  void* const large = arena.take(2 * kRegion);
  static_cast<char*>(large)[2 * kRegion - 1] = 1;
  expect(is_mapped(large), "a large block is not there");
  void* const small = arena.take(1000);
  Arena::give_back(large);
  expect(!is_mapped(large), "a large block was kept");
  Arena::give_back(small);
}

void refuses_what_there_is_not() {
  Arena arena(Arena::Unused::kKept);
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4}) {
    bool refused = false;
    try {
      arena.take(bytes);
    } catch (const std::bad_alloc&) {
      refused = true;
    }
    expect(refused, "more was taken than there is");
  }
  Arena::give_back(arena.take(100));
}

// The process may map 64 MiB more than it has.
void makes_do_with_few_addresses() {
  size_t pages = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  expect(file != nullptr && std::fscanf(file, "%zu", &pages) == 1, "statm cannot be read");
  std::fclose(file);
  rlimit limit{};
  expect(getrlimit(RLIMIT_AS, &limit) == 0, "the limit of addresses cannot be read");
  limit.rlim_cur = pages * 4096 + 64 * kMiB;
  expect(setrlimit(RLIMIT_AS, &limit) == 0, "addresses cannot be limited");
  Arena arena(Arena::Unused::kKept);
  void* const memory = arena.take(10 * kMiB);
  std::memset(memory, 1, 10 * kMiB);
  Arena::give_back(memory);
}

const std::map<std::string, void (*)()> kChecks = {
    {"joins", joins},
    {"takes_the_first_place", takes_the_first_place},
    {"takes_older_regions_first", takes_older_regions_first},
    {"serves_many_threads", serves_many_threads},
    {"returns_what_is_unused", returns_what_is_unused},
    {"unmaps_what_is_large", unmaps_what_is_large},
    {"refuses_what_there_is_not", refuses_what_there_is_not},
    {"makes_do_with_few_addresses", makes_do_with_few_addresses},
};

}  // namespace

int main(int count, char** arguments) {
  expect(count == 2 && kChecks.count(arguments[1]) == 1, "name a check");
  kChecks.at(arguments[1])();
}
