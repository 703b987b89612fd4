#include "running.h"

#include <memory>

namespace clew {

namespace {

std::atomic<uint64_t> threads{0};

struct Owner {
  std::unique_ptr<Running> held;
  ~Owner();
};
constinit thread_local bool is_over = false;
thread_local Owner owner;

Owner::~Owner() {
  is_over = true;
  running = nullptr;
}

}  // namespace

Running& begin_running() {
  auto made = std::make_unique<Running>(++threads);
  running = made.get();
  // A thread that has ended and still runs ops, as other variables of it are destroyed, keeps it.
  if (is_over) return *made.release();
  owner.held = std::move(made);
  return *running;
}

}  // namespace clew
