// One recording: its threads, its values, and the rows it has written so far.
#pragma once
#include <ATen/record_function.h>
#include <c10/core/GeneratorImpl.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "arguments.h"
#include "lock.h"
#include "names.h"
#include "ops.h"
#include "rows.h"
#include "stacks.h"
#include "values.h"

namespace clew {

class Recording;
struct Thread;

// Where an op runs: its line, and the module call around it.
struct Place {
  Node node;
  int64_t call = -1;
};

// An op that has begun. What it took lies in `Thread::words` and `Thread::refs`, from these on.
struct OpenOp {
  const OpFacts* facts = nullptr;
  bool is_recorded = false;
  bool is_composite = false;  // then the rest is in the last of `Thread::composites`
  bool is_asked = false;      // its tensors are handed to Python, from `Thread::given`
  bool is_writing = false;    // and counted by `Values::writing`
  int errors = 0;             // exceptions in flight when it began
  size_t calls = 0;           // how many module calls were open when it began
  int64_t id = -1, parent = -1, start = 0, number = 0;
  uint64_t made = 0;  // the number the next autograd node had
  Place place;
  int32_t generator = NOTHING, draw = NOTHING;
  size_t first_word = 0, first_ref = 0, first_written = 0;
};

// A composite that has begun. It becomes an event, with an id, when the first op in it begins.
struct OpenComposite {
  const OpFacts* facts = nullptr;
  int64_t id = -1, parent = -1, start = 0, number = 0;
  int errors = 0;
  Place place;
  Frame frame{};  // the innermost one as it began, if there was any
  size_t first_word = 0, first_ref = 0, words = 0, refs = 0;
};

// A tensor that the running op writes to, and which argument it is.
struct Written {
  TensorImpl* tensor;
  int argument;
  int32_t odd_meta;
  bool is_in_list;
  int64_t value = -1;  // once it is written to
};

using WeakTensor = c10::weak_intrusive_ptr<TensorImpl, c10::UndefinedTensorImpl>;

// A call of an op whose values were asked for, as Python is told of it: a tensor, undefined if it
// is gone, and the number of its value for each hole in the words.
struct AskedCall {
  int32_t op = NOTHING;
  std::vector<uint64_t> words;
  std::vector<std::string> texts;
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> values;
};

// One thread of the program. Only that thread uses it, but for `is_muted` and what the recording's
// lock guards.
struct Thread {
  Recording* recording = nullptr;
  uint64_t owner = 0;  // the thread's number in this process, which no other ever has
  int index = 0;
  bool is_followed = false;             // also outside module calls
  std::atomic<bool> is_muted{false};
  Stack stack;
  std::vector<OpenCall> calls;
  std::vector<OpenOp> open;
  int recorded = 0;  // how many of the open ops are recorded, other than composites
  // Guarded by the recording's lock, where they change.
  std::vector<OpenComposite> composites;
  Words words;
  Growing<int64_t> refs;
  std::vector<Written> written;
  // The tensors of the running op in the order of its references, if it is asked for.
  std::vector<WeakTensor> given;
  // Room for the arguments and results of a module call. It is taken while it is filled: to describe
  // an object runs Python code, in which another module may be called.
  Words call_words;
  Growing<int64_t> call_refs;
  // Facts of tensors that only Python can read, for the op that begins or ends.
  std::vector<std::pair<TensorImpl*, int32_t>> odd;
  bool is_asking = false;  // Python is asked something: its own ops are not recorded
};

// A function of the host, bound when it is first called: most recordings call few of them.
class HostFunction {
 public:
  HostFunction(PyObject* host, const char* name) : host_(host), name_(name) {}
  ~HostFunction() { Py_XDECREF(bound_); }
  HostFunction(const HostFunction&) = delete;

  // Return it, borrowed; None, which cannot be called, if the host lacks it.
  operator PyObject*() {
    if (bound_ == nullptr) bound_ = PyObject_GetAttrString(host_, name_);
    if (bound_ != nullptr) return bound_;
    PyErr_Clear();
    return Py_None;
  }

 private:
  PyObject* host_;  // borrowed
  const char* name_;
  PyObject* bound_ = nullptr;
};

// The Python functions that a recording calls, with the GIL, never with its lock.
struct Host {
  explicit Host(PyObject* given) : object(Py_NewRef(given)) {}
  ~Host() {
    for (PyObject* one : {wants, ran, object}) Py_XDECREF(one);
  }

  PyObject* const object;  // owned, like the functions of it
  HostFunction node{object, "node"};    // (parent, code, instruction, is_own) -> number << 4 | phase << 1 | direct
  HostFunction thread{object, "thread"};  // () -> (index, root, boundary, engine root)
  HostFunction place{object, "place"};   // () -> (node, parent): of a thread below a direct call
  HostFunction meta{object, "meta"};    // tensor -> the number of its meta, for one that is odd
  HostFunction full{object, "full"};    // (): rows are to be taken
  HostFunction raised{object, "raised"};  // (exception, event) -> its text: an op has raised it
  HostFunction interrupt{object, "interrupt"};  // (exception) -> what of it a signal handler of the program raised, or None
  HostFunction keep{object, "keep"};    // (tensor, value): keep what Python code has to read
  HostFunction follows{object, "follows"};  // () -> whether this thread was started in the block
  HostFunction unfollowed{object, "unfollowed"};  // (): this thread runs ops that are not recorded
  // Of ops whose values were asked for; null if there are none:
  PyObject* wants = nullptr;  // (op) -> whether values of its calls are asked for
  PyObject* ran = nullptr;    // (op, words, texts, tensors, values): such an op has run
  // Of module calls:
  HostFunction outermost{object, "outermost"};   // (module) -> whether a call inside no other is recorded
  HostFunction idle{object, "idle"};        // (module): such a call is over
  HostFunction names{object, "names"};       // (): names are to be made objects, by `Recording.named`
  HostFunction fault{object, "fault"};       // (exception, where): Clew failed; raises it if it is the program's
  HostFunction failed_call{object, "failed_call"}; // (event, exception) -> its text: it leaves an open call
  // (count): end the calls of the running thread above the first ones
  HostFunction abandon{object, "abandon"};
  HostFunction module{object, "module"};      // (module, name of the caller, node) -> (name, entry, index, is it the only name)
  // (entry, module, event) -> (names, values), None if they have to be read each time: its attributes may have changed
  HostFunction attributes{object, "attributes"};
  HostFunction describe{object, "describe"};    // (value, producer) -> lists, dicts, constants, tokens
  HostFunction constant{object, "constant"};    // (object) -> its number
};

// What the hooks of modules look at in Python, borrowed from the host.
struct HookState {
  PyObject* turn = nullptr;     // [a number]: attributes are read again in each turn
  PyObject* waiting = nullptr;  // dict, list: if there is anything in them, Python code is called
  PyObject* failed = nullptr;
};

// A module that was called: its name, and what was seen of it. Objects are owned.
struct KnownModule {
  // Null until Python code asks for names; then the entry has the counts.
  PyObject* entry = nullptr;
  PyObject* name = nullptr;
  int64_t calls = 0, recomputed = 0;
  int32_t subject = -1;
  bool is_only_name = false;
  long turn = -1;
  PyObject* training = nullptr;
  PyObject* noted = nullptr;  // the settings in the rows so far, as `NamedModule` has them
};

// The plain attributes of a module at its first call.
struct NotedSettings {
  int32_t number;
  int64_t event;
  PyObject* settings;  // owned
};

class Recording {
 public:
  Recording(PyObject* host, bool reads_versions);
  ~Recording();

  // Record that a module call begins or ends, from a hook; return whether it was recorded here.
  bool enter_module(PyObject* module, PyObject* args);
  bool leave_module(PyObject* module, PyObject* result);
  // Record that a call that was followed begins, with the module and its arguments as Python gives
  // them to a function; return its event. It ends by one of the three below it.
  int64_t begin_call(PyObject* const* args, Py_ssize_t count, PyObject* names);
  void return_from(int64_t event, PyObject* module, PyObject* result);
  void raise_from(int64_t event, PyObject* module, PyObject* exception);
  void break_off(int64_t event);
  // End an open call that is recorded here, with its result or with the text of its error.
  bool finish_call(int64_t event, PyObject* result);
  bool fail_call(int64_t event, const char* error);
  // End the calls of a thread above the first `count`, whose ends were not seen.
  void abandon_calls(Thread& thread, size_t count);
  // The same where there may be calls among them that Python code records and has to end.
  void abandon_all_calls(Thread& thread, size_t count);

  // Use the names that an earlier recording has found, if the model is as it was; a `Names`.
  void offer_names(PyObject* names);
  // Return the names that module calls refer to, borrowed; null if there are none, or Python has them.
  PyObject* used_names() const { return are_names_used_ && !has_objects_ ? names_ : nullptr; }
  // Take the objects that Python code has made of names, one for each row of a `Names`.
  void set_named(PyObject* names, PyObject* objects);
  // A module has got another name: which one is meant depends on the caller.
  void set_renamed(size_t row);
  // Have Python code make the objects, if it has not done so.
  void need_names();
  bool has_calls() const { return has_calls_; }
  std::vector<NotedSettings> take_noted() { return std::exchange(noted_, {}); }

  // Record that an op begins; return whether what begins inside it is part of it.
  bool begin_op(const at::RecordFunction& call, const OpFacts& facts);
  void end_op(const at::RecordFunction& call, const OpFacts& facts);

  // Begin to record, with the running thread; those with a higher number than `newest` are new.
  void begin_threads(uint64_t newest);

  // Return the state of the running thread; null if its ops are not recorded. With `make`, also of a
  // thread that is older than the recording.
  Thread* thread(bool make);
  // The same, or null if there is none yet.
  Thread* known_thread();

  int64_t next_id() { return ids_.fetch_add(1, std::memory_order_relaxed); }

  int64_t peek_id() const { return ids_.load(std::memory_order_relaxed); }

  // Return the row of an open call, with the lock held.
  EventRow call_row(Thread& thread, const OpenCall& call, int64_t end_time, int32_t error);

  // The same as it is now, without what lies above it.
  EventRow open_row(Thread& thread, const OpenCall& call);
  EventRow open_row(Thread& thread, const OpenComposite& one);

  int64_t value_of(const at::Tensor& tensor, int64_t producer);
  int64_t made_value(const at::Tensor& tensor, int64_t event);
  int64_t written_value(const at::Tensor& tensor, int64_t event);
  void forget(const at::Tensor& tensor);
  // Drop references that may not be dropped under the lock; with the GIL.
  void let_go();
  void set_error(int64_t event, const char* text);
  // Note what went wrong in a callback; the program gets what its signal handler raised in our Python code.
  void note_fault(const char* where, const std::exception& fault);

  Host host;
  HookState hooks;
  CallFrames torch;
  uint64_t serial = 0;
  // Threads with a higher number began after the recording did.
  uint64_t newest_thread = 0;
  size_t most_rows = 1 << 14;
  int64_t most_bytes = 16 << 20;  // of copies, before rows are taken
  std::atomic<bool> is_halted{false};
  bool sees_ops = false;

  // The rule of locks: whoever holds this one, or another mutex of ours, neither takes the GIL nor runs
  // Python code: threads that have the GIL wait for this lock. So under it no strong reference to a
  // tensor, storage or autograd node is made or dropped, for torch takes the GIL when there comes to be
  // one besides that of the Python object, and when there is none any more; and no weak one to a
  // wrapper is dropped (`Values::dropped`). What needs any of that comes before the lock or after it.
  // Who holds this lock takes none but `ops_lock` and `blocks_lock`; a fork takes all (`active.cpp`).
  Lock lock;
  // Guarded by `lock`:
  Values values;
  Interned arguments;
  Texts texts;
  Growing<EventRow> events;
  Growing<int64_t> refs;
  // The events that raised, with what they raised once Python has seen it.
  struct Raised {
    int64_t event;
    std::string text;
    bool is_error = true;  // not for an exception that only ends a recomputation
  };
  std::vector<Raised> errors;
  int32_t first_error = 0;
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<std::string> generators;
  // How many rows of the tables were taken.
  int32_t taken_metas = 0, taken_arguments = 0;
  // What went wrong in a callback, which may not raise.
  std::vector<std::string> faults;

 private:
  void begin(Thread& thread, OpenOp& op, c10::ArrayRef<const c10::IValue> inputs);
  bool end(Thread& thread, OpenOp& op, c10::ArrayRef<const c10::IValue> outputs, int64_t end_time,
           bool has_raised);
  void begin_composite(Thread& thread, const OpFacts& facts,
                       c10::ArrayRef<const c10::IValue> inputs);
  void end_composite(Thread& thread, c10::ArrayRef<const c10::IValue> outputs);
  // Write the event of the last open composite; return whether rows are to be taken.
  bool append_composite(Thread& thread, OpenComposite& one,
                        c10::ArrayRef<const c10::IValue> outputs, int64_t end_time,
                        bool has_raised);
  // Number the open composites, as an op begins in them; return the parent of that op. With the lock.
  int64_t enter_composites(Thread& thread, int64_t call);
  // Number an exception that an event ends with, whose text Python tells. With the lock.
  int32_t add_error(int64_t event);
  // Append the references of what an open call was given, with the lock held; return their shape.
  template <class Open>
  int32_t append_given(const Thread& thread, const Open& one, uint64_t op) {
    const int64_t* from = thread.refs.begin() + one.first_ref;
    refs.add(from, from + one.refs);
    const uint64_t* begin = thread.words.begin() + one.first_word;
    Words words;
    words.add(begin, begin + one.words);
    words.push_back(word(Tag::RESULTS, 0));
    words.push_back(op);
    return arguments.number(words.data(), words.size());
  }
  // Number the value of a tensor outside any op, and keep of it what Python has to read.
  template <class Number>
  int64_t number_of(const at::Tensor& tensor, Number number);
  void append_written(Thread& thread, const OpenOp& op, size_t first_output);
  // End the module calls that began in an op that is over: an interrupt has ended them.
  void abandon_calls_in(Thread& thread, const OpenOp& op);
  // Forget what an op has taken and written to, with the lock held.
  void drop_above(Thread& thread, OpenOp& op);
  void take_rows(Thread& thread);
  // Return whether values of an op's calls are asked for; without the lock.
  bool is_asked(Thread& thread, const OpFacts& facts);
  // Hold the tensors of an op that is asked for, as far as they are known; without the lock.
  void hold_given(Thread& thread, AskedCall& call);
  // Fill in what Python is told of an op that ran, with the lock held; its arguments are held.
  void describe_asked(Thread& thread, const OpenOp& op, AskedCall& call);
  // Tell Python of it; without the lock.
  void tell_ran(Thread& thread, AskedCall& call);
  // Have Python keep the values of tensors that only it can read; without the lock.
  void keep_unread(Thread* thread, std::vector<std::pair<WeakTensor, int64_t>> unread);
  std::vector<std::pair<WeakTensor, int64_t>> take_unread();
  bool is_full() const { return events.size() >= most_rows || values.kept.pending >= most_bytes; }
  Place find_place(Thread& thread);
  // Return the number of the autograd node that runs an op, as its row has it; 0 if none may. With
  // the lock.
  int64_t node_number(const Place& place);
  void read_odd(Thread& thread, c10::ArrayRef<const c10::IValue> values);
  void draw(OpenOp& op, c10::ArrayRef<const c10::IValue> inputs);
  // Tell Python, once for each thread, that it runs ops that are not recorded.
  bool was_told_unfollowed();
  void tell_unfollowed();
  // Return whether Python knows the running thread as one that was started in the block.
  bool was_started_inside();
  // Find the line of a module call that begins in a frame; return false if only Python code can.
  bool find_call(Thread& thread, void* frame, Node& node);
  template <class EachNamed>
  int64_t open_call(Thread& thread, PyObject* module, const Node& node, void* frame,
                    PyObject* const* args, Py_ssize_t count, EachNamed each_named);
  // Make an open call the innermost one of the running thread; return null if it is not there.
  Thread* reopen_call(int64_t event);
  void after_call(Thread& thread, PyObject* module);
  void append_result(Thread& thread, PyObject* result);
  void end_call(Thread& thread, int64_t end_time, int32_t error, bool has_result);
  KnownModule* known_module(Thread& thread, PyObject* module, const Node& node);
  KnownModule* named_module(PyObject* module);
  void count_call(KnownModule& known, OpenCall& call);
  void note_settings(KnownModule& known, PyObject* module, int64_t event);
  bool note_known_settings(KnownModule& known, PyObject* module, int64_t event);
  void append_object(Thread& thread, Words& words, Growing<int64_t>& found,
                     PyObject* value, int64_t producer, int depth, bool is_described);
  Node ask_node(Thread& thread, const Node& parent, const Frame& frame, bool is_own);
  int32_t ask_meta(Thread& thread, const at::Tensor& tensor);
  int32_t meta_if_odd(const at::Tensor& tensor);

  // Whether values of ops are asked for, by their numbers: 0 not known yet, 1 no, 2 yes. Guarded by
  // the lock.
  std::vector<uint8_t> asked_;
  std::atomic<int64_t> ids_{0};
  // A generator that numbers were drawn from: its number, how often, and for one of the program's own
  // a reference, so that no other has its address.
  struct Draws {
    int32_t number, count;
    bool is_own;
    c10::weak_intrusive_ptr<c10::GeneratorImpl> generator;
  };
  std::unordered_map<std::string, Draws> draws_;
  Thread* main_ = nullptr;
  Node engine_root_;
  std::unordered_map<PyObject*, KnownModule> modules_;
  // The names of the model, owned; and what was seen of each module, by its row.
  PyObject* names_ = nullptr;
  std::vector<KnownModule> named_;
  std::vector<NotedSettings> noted_;
  bool are_names_used_ = false, has_objects_ = false, has_calls_ = false;
};

// What stands for the event of a call that is not recorded, and of one that only hooks can record.
constexpr int64_t UNRECORDED = -1, NEEDS_HOOKS = -2;

// Follow the module calls that pass through a function; return false if that cannot be done.
// `use_hooks` is called, once, when one of them has to be recorded by hooks. See `calls.cpp`.
bool follow_calls(Recording* recording, PyObject* object, PyObject* function, PyObject* use_hooks);
void unfollow_calls(Recording* recording);

int64_t now();

// Return a Python object that shows a tensor. One that has none yet gets it from the program, which
// may make it a parameter or of another class: Python code of ours sees a shallow copy of it.
PyObject* wrapped(const at::Tensor& tensor);

// So many nestings of arguments are remembered: constants may differ in every step.
constexpr size_t MOST_ARGUMENTS = 1 << 15;

// Record ops on all threads, for all recordings that are active.
void activate(Recording* recording);
void deactivate(Recording* recording);
bool is_active(const Recording* recording);
// In a forked process: deactivate without waiting for threads that are not there.
void abandon(Recording* recording);

}  // namespace clew
