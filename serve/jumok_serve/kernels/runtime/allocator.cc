// Gives each thread an arena, and ONNX Runtime an allocator in it.
#include "runtime/allocator.h"

#include <cstdint>
#include <mutex>
#include <vector>

#include "runtime/arena.h"

namespace jumok {
namespace {

// Arenas of all threads; a new thread takes the arena of an ended one.
class Arenas {
 public:
  struct Place {
    Arena arena{Arena::Unused::kKept};
    bool taken = true;
  };

  static Arenas& all() {
    static Arenas& lasting = *new Arenas;
    return lasting;
  }

  Place* take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Place* place : places_)
      if (!place->taken) {
        place->arena.set(Arena::Unused::kKept);
        place->taken = true;
        return place;
      }
    places_.push_back(new Place);
    return places_.back();
  }

  void leave(Place* place) {
    const std::lock_guard<std::mutex> lock(mutex_);
    place->arena.set(Arena::Unused::kReturned);
    place->taken = false;
  }

  void return_unused() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Place* place : places_) place->arena.return_unused();
  }

 private:
  std::mutex mutex_;
  std::vector<Place*> places_;
};

// A thread's hold on an arena.
class Tenancy {
 public:
  Tenancy() : place_(Arenas::all().take()) {}
  ~Tenancy() { Arenas::all().leave(place_); }
  Tenancy(const Tenancy&) = delete;
  Tenancy& operator=(const Tenancy&) = delete;
  Arena& arena() const { return place_->arena; }

 private:
  Arenas::Place* place_;
};

// Memory that lasts as long as a session.
Arena& reserved() {
  static Arena& lasting = *new Arena(Arena::Unused::kReturned);
  return lasting;
}

struct Allocator : ort::Allocator {
  ort::MemoryInfo* info;
};

void* allocate(ort::Allocator*, size_t bytes) {
  static thread_local const Tenancy tenancy;
  return bytes == 0 ? nullptr : tenancy.arena().take(bytes);
}

void* reserve(ort::Allocator*, size_t bytes) { return bytes == 0 ? nullptr : reserved().take(bytes); }

void free(ort::Allocator*, void* memory) { Arena::give_back(memory); }

const ort::MemoryInfo* info(const ort::Allocator* allocator) { return static_cast<const Allocator*>(allocator)->info; }

}  // namespace

ort::Status* register_allocator(const ort::Api& api) {
  ort::MemoryInfo* memory = nullptr;
  if (ort::Status* status = api.CreateCpuMemoryInfo(&memory)) return status;
  ort::Env* environment = nullptr;
  if (ort::Status* status = api.CreateEnv("jumok", &environment)) return status;
  auto* const allocator = new Allocator{{ort::kStructVersion, allocate, free, info, reserve}, memory};
  ort::Status* const status = api.RegisterAllocator(environment, allocator);
  api.ReleaseEnv(environment);
  return status;
}

}  // namespace jumok

// Returns the unused pages of all threads' arenas to the system. Always 0.
extern "C" __attribute__((visibility("default"))) int64_t jumok_return_unused() {
  jumok::Arenas::all().return_unused();
  return 0;
}
