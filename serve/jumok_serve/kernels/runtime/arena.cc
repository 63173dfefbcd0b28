// Regions of an arena, and their blocks.
#include "runtime/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace jumok {
namespace {

constexpr size_t kLine = 64;                   // bytes of a cache line
constexpr size_t kHugePage = size_t{1} << 21;  // bytes
constexpr size_t kRegion = size_t{1} << 28;    // bytes of address space; untouched pages take no memory

size_t round_up(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

// Maps address space that begins at a huge page; null if there is none.
void* map(size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  const auto at = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t first = round_up(at, kHugePage);
  if (first > at) munmap(mapped, first - at);
  munmap(reinterpret_cast<void*>(first + bytes), at + kHugePage - first);
  madvise(reinterpret_cast<void*>(first), bytes, MADV_HUGEPAGE);  // optional: only slower without
  return reinterpret_cast<void*>(first);
}

void return_pages(char* memory, size_t bytes) {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = round_up(reinterpret_cast<uintptr_t>(memory), page);
  const uintptr_t last = (reinterpret_cast<uintptr_t>(memory) + bytes) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

}  // namespace

// Header of a block's memory. Blocks fill a region; no two neighbors are free.
struct alignas(kLine) Arena::Block {
  Arena* arena;
  size_t bytes;   // after this header
  Block* before;  // previous neighbor; null: first of the region
  size_t region;  // number of the region, in order of mapping
  bool last;      // last of the region
  bool free;
  Block *next, *previous;  // in the list of free blocks

  char* memory() { return reinterpret_cast<char*>(this + 1); }
  Block* after() { return last ? nullptr : reinterpret_cast<Block*>(memory() + bytes); }
  bool comes_before(const Block* other) const {
    return region == other->region ? this < other : region < other->region;
  }
  bool is_large_region() const { return before == nullptr && last && sizeof(Block) + bytes > kRegion; }
};

// The first fitting block is taken, so that few pages are touched and stay in the cache. An allocation larger than a
// region gets its own, so that all of it can be unmapped.
void* Arena::take(size_t bytes) {
  if (bytes > SIZE_MAX / 2) throw std::bad_alloc();
  bytes = round_up(bytes, kLine);
  const std::lock_guard<std::mutex> lock(mutex_);
  Block* found = nullptr;
  for (Block* block = free_; block != nullptr; block = block->next)
    if (block->bytes >= bytes && (found == nullptr || block->comes_before(found))) found = block;
  if (found == nullptr) found = add_region(bytes);
  remove(found);
  if (!found->is_large_region() && found->bytes > bytes + sizeof(Block)) split(found, bytes);
  return found->memory();
}

void Arena::give_back(void* memory) {
  if (memory == nullptr) return;
  Block* const block = static_cast<Block*>(memory) - 1;
  block->arena->free(block);
}

void Arena::set(Unused unused) {
  const std::lock_guard<std::mutex> lock(mutex_);
  unused_ = unused;
  if (unused == Unused::kReturned) return_free();
}

void Arena::return_unused() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return_free();
}

void Arena::return_free() const {
  for (Block* block = free_; block != nullptr; block = block->next) return_pages(block->memory(), block->bytes);
}

void Arena::free(Block* block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Block* after = block->after(); after != nullptr && after->free) {
    remove(after);
    join(block, after);
  }
  if (Block* before = block->before; before != nullptr && before->free) {
    remove(before);
    join(before, block);
    block = before;
  }
  if (block->is_large_region()) {
    munmap(block, sizeof(Block) + block->bytes);
    return;
  }
  insert(block);
  if (unused_ == Unused::kReturned) return_pages(block->memory(), block->bytes);
}

// Maps one free block: larger for large allocations, smaller if address space is short.
Arena::Block* Arena::add_region(size_t bytes) {
  const size_t least = round_up(sizeof(Block) + bytes, kHugePage);
  size_t size = std::max(kRegion, least);
  void* first = map(size);
  while (first == nullptr) {
    if (size == least) throw std::bad_alloc();
    size = std::max(size / 2, least);
    first = map(size);
  }
  Block* const block =
      new (first) Block{this, size - sizeof(Block), nullptr, regions_++, true, false, nullptr, nullptr};
  insert(block);
  return block;
}

void Arena::split(Block* block, size_t bytes) {
  Block* const rest = new (block->memory() + bytes)
      Block{this, block->bytes - bytes - sizeof(Block), block, block->region, block->last, false, nullptr, nullptr};
  block->bytes = bytes;
  block->last = false;
  if (Block* after = rest->after()) after->before = rest;
  insert(rest);
}

void Arena::join(Block* block, Block* after) {
  block->bytes += sizeof(Block) + after->bytes;
  block->last = after->last;
  if (Block* next = block->after()) next->before = block;
}

void Arena::insert(Block* block) {
  block->free = true;
  block->previous = nullptr;
  block->next = free_;
  if (free_ != nullptr) free_->previous = block;
  free_ = block;
}

void Arena::remove(Block* block) {
  block->free = false;
  (block->previous != nullptr ? block->previous->next : free_) = block->next;
  if (block->next != nullptr) block->next->previous = block->previous;
}

}  // namespace jumok
