#include "ops.h"

#include <atomic>
#include <deque>
#include <unordered_map>
#include <unordered_set>

#include "running.h"

namespace clew {

std::mutex ops_lock;

namespace {

using c10::DispatchKey;

// Never destroyed: torch tells of the removal of every op when the process ends.
auto& all = *new std::deque<OpFacts>;  // which never moves what it holds
auto& by_name = *new std::unordered_map<const void*, OpFacts*>;  // by the address of the schema's name

// Ops that write to the running statistics among their arguments, without declaring it.
const std::unordered_set<std::string> UNDECLARED = {
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
    "aten::batch_norm"};

const std::unordered_set<std::string> UNWRITTEN = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::empty_permuted",
    "aten::new_empty", "aten::new_empty_strided"};

// Collectives write to their first argument without declaring it, and return while they still run.
bool is_collective(const std::string& name) {
  return name.rfind("c10d::", 0) == 0 && name.back() == '_' && name != "c10d::monitored_barrier_";
}

void read_schema(OpFacts& facts, const c10::OperatorHandle& op) {
  bool is_undeclared = UNDECLARED.count(facts.name) > 0;
  facts.brings_data = facts.name == "aten::lift_fresh";
  // Writes by its schema, and only cuts its argument off from autograd.
  facts.keeps_elements = facts.name == "aten::detach_";
  bool may_skip = facts.name.find("dropout") != std::string::npos ||
                  facts.name.find("attention") != std::string::npos;
  facts.writes_later = is_collective(facts.name);
  if (facts.writes_later) facts.writes.push_back(0);
  int at = 0;
  for (const auto& argument : op.schema().arguments()) {
    const std::string& name = argument.name();
    bool is_flag = name == "train" || name == "training";
    if (is_undeclared) {
      if (name == "running_mean" || name == "running_var") facts.writes.push_back(at);
      if (is_flag) facts.training = at;
    } else if (argument.alias_info() != nullptr && argument.alias_info()->isWrite() &&
               !facts.keeps_elements) {
      facts.writes.push_back(at);
    }
    if (name == "generator") facts.generator = at;
    if (is_flag && facts.draws_if < 0) facts.draws_if = at;
    bool is_chance = name == "dropout_p" || name == "p" || name == "dropout";
    if (may_skip && is_chance && facts.chance < 0) facts.chance = at;
    ++at;
  }
}

OpFacts* make(const void* key, const c10::OperatorHandle& op) {
  std::lock_guard<std::mutex> lock(ops_lock);
  OpFacts*& slot = by_name[key];
  if (slot != nullptr) return slot;
  all.emplace_back();
  OpFacts& facts = all.back();
  facts.number = static_cast<int32_t>(all.size()) - 1;
  facts.name = op.operator_name().name;
  facts.overload = op.operator_name().overload_name;
  facts.arguments = op.schema().arguments().size();
  facts.results = op.schema().returns().size();
  facts.schema = c10::toString(op.schema());
  facts.is_composite = op.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
                       !op.hasKernelForDispatchKey(DispatchKey::CPU);
  facts.has_autocast = op.hasKernelForDispatchKey(DispatchKey::AutocastCPU) ||
                       op.hasKernelForDispatchKey(DispatchKey::AutocastCUDA);
  facts.is_annotation = facts.name.rfind("profiler::", 0) == 0;
  facts.leaves_unwritten = UNWRITTEN.count(facts.name) > 0;
  facts.draws = op.hasTag(at::Tag::nondeterministic_seeded);
  read_schema(facts, op);
  slot = &facts;
  return slot;
}

// Counts the ops that were taken out of their libraries: each leaves its address to others.
std::atomic<uint64_t> removed{0};

class Removals : public c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle&) override {
    std::lock_guard<std::mutex> lock(ops_lock);
    by_name.clear();
    ++removed;
  }
};

}  // namespace

const OpFacts* op_of(const at::RecordFunction& call) {
  const void* key = call.name();
  Running& thread = here();
  uint64_t now_removed = removed.load(std::memory_order_acquire);
  if (C10_UNLIKELY(thread.removed != now_removed)) {
    thread.recent.fill({});
    thread.removed = now_removed;
  }
  Running::Op& recent = thread.recent[(reinterpret_cast<size_t>(key) >> 4) & 255];
  if (recent.key == key) return recent.facts;
  auto name = call.operator_name();
  if (!name) return nullptr;
  auto op = c10::Dispatcher::singleton().findOp(*name);
  if (!op) return nullptr;
  recent = {key, make(key, *op)};
  return recent.facts;
}

void watch_removals() {
  static const auto* listening = new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Removals>()));
  (void)listening;
}

const OpFacts& op_at(int32_t number) {
  std::lock_guard<std::mutex> lock(ops_lock);
  return all[static_cast<size_t>(number)];
}

int32_t op_count() {
  std::lock_guard<std::mutex> lock(ops_lock);
  return static_cast<int32_t>(all.size());
}

}  // namespace clew
