#include "arguments.h"

#include <ATen/core/Tensor.h>

#include <cstring>

namespace clew {

bool is_number(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return impl->is_wrapped_number() && impl->has_storage() && impl->device().is_cpu() &&
         impl->dim() == 0 && impl->data() != nullptr;
}

void append_int(Words& words, int64_t value) {
  constexpr int64_t most = int64_t{1} << 54;
  if (value > -most && value < most) {
    words.push_back(word(Tag::INT, static_cast<uint64_t>(value)));
  } else {
    words.push_back(word(Tag::LONG));
    words.push_back(static_cast<uint64_t>(value));
  }
}

void append_double(Words& words, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  words.push_back(word(Tag::DOUBLE));
  words.push_back(bits);
}

namespace {

void append_complex(Words& words, c10::complex<double> value) {
  words.push_back(word(Tag::COMPLEX));
  uint64_t bits[2];
  double parts[2] = {value.real(), value.imag()};
  std::memcpy(bits, parts, sizeof bits);
  words.add(bits, bits + 2);
}

}  // namespace

void append_number(Words& words, const at::Tensor& number) {
  const void* data = number.unsafeGetTensorImpl()->data();
  switch (number.scalar_type()) {
    case at::kDouble: return append_double(words, *static_cast<const double*>(data));
    case at::kLong: return append_int(words, *static_cast<const int64_t*>(data));
    case at::kBool:
      return words.push_back(word(Tag::BOOL, *static_cast<const bool*>(data) ? 1 : 0));
    case at::kComplexDouble:
      return append_complex(words, *static_cast<const c10::complex<double>*>(data));
    default: return words.push_back(word(Tag::OTHER));
  }
}

void append_constant(Words& words, Texts& texts, const c10::IValue& value) {
  if (value.isNone()) {
    words.push_back(word(Tag::NONE));
  } else if (value.isInt()) {
    append_int(words, value.toInt());
  } else if (value.isBool()) {
    words.push_back(word(Tag::BOOL, value.toBool() ? 1 : 0));
  } else if (value.isDouble()) {
    append_double(words, value.toDouble());
  } else if (value.isComplexDouble()) {
    append_complex(words, value.toComplexDouble());
  } else if (value.isString()) {
    words.push_back(word(Tag::TEXT, texts.number(value.toStringRef())));
  } else if (value.isDevice()) {
    words.push_back(word(Tag::DEVICE, texts.number(value.toDevice().str())));
  } else if (value.isGenerator()) {
    words.push_back(word(Tag::GENERATOR));
  } else if (value.isStorage()) {
    words.push_back(word(Tag::STORAGE));
  } else {
    words.push_back(word(Tag::OTHER));
  }
}

}  // namespace clew
