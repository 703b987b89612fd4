// Write the arguments and results of calls as words: the nesting, the constants, holes for tensors.
//
// Calls whose words are equal share one row of the table of arguments; `clew.record.native_arguments` turns
// the words of a row back into lists and constants. Each word has a tag in its highest byte.
#pragma once
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "growing.h"

namespace clew {

using Words = Growing<uint64_t>;

enum class Tag : uint8_t {
  NONE, TENSOR, INT, LONG, DOUBLE, COMPLEX, BOOL, TEXT, INTS, LIST, DEVICE, GENERATOR, STORAGE, OTHER,
  RESULTS, WRITTEN, DICT, KEYWORD, OBJECT,
};

inline uint64_t word(Tag tag, uint64_t payload = 0) {
  return static_cast<uint64_t>(tag) << 56 | (payload & 0x00FFFFFFFFFFFFFFull);
}

// Texts of the program, numbered; rarely met in ops.
class Texts {
 public:
  uint64_t number(const std::string& text) {
    auto [at, is_new] = numbers_.try_emplace(text, all.size());
    if (is_new) all.push_back(text);
    return at->second;
  }
  std::vector<std::string> all;

 private:
  std::unordered_map<std::string, uint64_t> numbers_;
};

// Return a Python number that reaches an op as a tensor without dimensions.
bool is_number(const at::Tensor& tensor);

// Append a value; `tensor(const at::Tensor&)` is called with each tensor in it.
template <typename OnTensor>
void append(Words& words, Texts& texts, const c10::IValue& value, OnTensor& tensor);

void append_constant(Words& words, Texts& texts, const c10::IValue& value);
void append_number(Words& words, const at::Tensor& number);
void append_int(Words& words, int64_t value);
void append_double(Words& words, double value);

template <typename OnTensor>
void append(
    Words& words, Texts& texts, const c10::IValue& value, OnTensor& tensor) {
  if (value.isTensor()) {
    const at::Tensor& one = value.toTensor();
    if (!one.defined()) {
      words.push_back(word(Tag::NONE, 1));
    } else if (is_number(one)) {
      append_number(words, one);
    } else {
      words.push_back(word(Tag::TENSOR));
      tensor(one);
    }
  } else if (value.isList()) {
    auto items = value.toListRef();
    if (!items.empty() && items[0].isInt()) {
      words.push_back(word(Tag::INTS, items.size()));
      for (const auto& item : items) {
        words.push_back(item.isInt() ? static_cast<uint64_t>(item.toInt()) : ~0ull);
      }
      return;
    }
    words.push_back(word(Tag::LIST, items.size()));
    for (const auto& item : items) append(words, texts, item, tensor);
  } else if (value.isTuple()) {
    const auto& items = value.toTupleRef().elements();
    words.push_back(word(Tag::LIST, items.size()));
    for (const auto& item : items) append(words, texts, item, tensor);
  } else {
    append_constant(words, texts, value);
  }
}

}  // namespace clew
