#include "tokenizer/jinja/value.h"

namespace hillstar::jinja {

bool Value::Truth() const {
  if (IsUndefined() || IsNone()) return false;
  if (const auto* flag = As<bool>()) return *flag;
  if (const auto* whole = As<int64_t>()) return *whole != 0;
  if (const auto* real = As<double>()) return *real != 0;
  if (const MarkedText* words = text()) return !words->empty();
  if (const List* items = list()) return !items->items.empty();
  if (const Dict* entries = dict()) return entries->is_namespace || !entries->entries().empty();
  return true;
}

std::string_view Value::TypeName() const {
  if (IsUndefined()) return "undefined";
  if (IsNone()) return "none";
  if (As<bool>() != nullptr) return "boolean";
  if (As<int64_t>() != nullptr || As<BigInteger>() != nullptr) return "integer";
  if (As<double>() != nullptr) return "float";
  if (text() != nullptr) return "string";
  if (list() != nullptr) return "list";
  if (dict() != nullptr) return dict()->is_namespace ? "namespace" : "mapping";
  if (loop() != nullptr) return "loop";
  return "function";
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = index_.find(key);
  return found == index_.end() ? nullptr : &entries_[found->second].value;
}

void Dict::Set(const Value& key, Value value) {
  const auto found = index_.find(key.text()->text());
  if (found != index_.end()) {
    entries_[found->second].value = std::move(value);
    return;
  }
  entries_.push_back({key, std::move(value)});
  index_.emplace(entries_.back().key.text()->text(), entries_.size() - 1);
}

}  // namespace hillstar::jinja
