// The values that a chat template computes with, as Python and Jinja have them. Containers belong
// to a Heap, which lives as long as one rendering; values are cheap to copy and never own
// containers, so that cycles and deep nesting do no harm. Not thread-safe: a Heap is of one
// rendering.
#pragma once

#include <concepts>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/marked_text.h"

namespace hillstar::jinja {

struct List;
class Dict;
struct Loop;
struct Callable;

struct Undefined {};
struct None {};
// A whole number beyond 64 bits, as written in JSON.
struct BigInteger {
  std::shared_ptr<const std::string> digits;
};

class Value {
 public:
  using Variant = std::variant<Undefined, None, bool, int64_t, double, BigInteger,
                               std::shared_ptr<const MarkedText>, List*, Dict*, Loop*, Callable*>;

  Value() = default;
  Value(None none) : data_(none) {}
  // Exact types only, since a pointer would pass for a boolean.
  template <typename T>
  requires std::same_as<T, bool> || std::same_as<T, int64_t> || std::same_as<T, double> Value(
      T value)
      : data_(value) {}
  Value(BigInteger value) : data_(std::move(value)) {}
  Value(List* list) : data_(list) {}
  Value(Dict* dict) : data_(dict) {}
  Value(Loop* loop) : data_(loop) {}
  Value(Callable* callable) : data_(callable) {}
  Value(MarkedText text) : data_(std::make_shared<const MarkedText>(std::move(text))) {}
  // Text of the template's own.
  static Value Plain(std::string_view text) { return MarkedText(text, false); }

  template <typename T>
  const T* As() const {
    return std::get_if<T>(&data_);
  }
  // Null where it is something else.
  const MarkedText* text() const {
    const auto* text = As<std::shared_ptr<const MarkedText>>();
    return text == nullptr ? nullptr : text->get();
  }
  List* list() const { return Pointer<List>(); }
  Dict* dict() const { return Pointer<Dict>(); }
  Loop* loop() const { return Pointer<Loop>(); }
  Callable* callable() const { return Pointer<Callable>(); }
  bool IsUndefined() const { return As<Undefined>() != nullptr; }
  bool IsNone() const { return As<None>() != nullptr; }
  const Variant& data() const { return data_; }

  // Python's truth: empty texts and containers, 0, none and what is undefined are false.
  bool Truth() const;
  // "string", "mapping" and so on, for messages.
  std::string_view TypeName() const;

 private:
  template <typename T>
  T* Pointer() const {
    T* const* pointer = As<T*>();
    return pointer == nullptr ? nullptr : *pointer;
  }
  Variant data_;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
};

// Keeps the order of insertion. Keys are texts.
class Dict {
 public:
  struct Entry {
    Value key;  // a text
    Value value;
  };
  // Null where there is no such key.
  const Value* Find(std::string_view key) const;
  // A key that is there keeps its place.
  void Set(const Value& key, Value value);
  const std::vector<Entry>& entries() const { return entries_; }
  bool is_namespace = false;

 private:
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> index_;  // views of the keys' texts
};

// What `loop` is inside a for.
struct Loop {
  const List* items = nullptr;
  int64_t index0 = 0;
};

class Heap {
 public:
  List* NewList(std::vector<Value> items = {}) {
    return &lists_.emplace_back(List{std::move(items), false});
  }
  Dict* NewDict() { return &dicts_.emplace_back(); }
  Loop* NewLoop() { return &loops_.emplace_back(); }

 private:
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Loop> loops_;
};

}  // namespace hillstar::jinja
