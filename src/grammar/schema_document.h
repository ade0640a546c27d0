// A JSON schema as it was given: its parts with their JSON pointers, what $ref leads to, and which
// keywords are served. One thread at a time.
#pragma once

#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hillstar {

using SchemaJson = nlohmann::ordered_json;

struct SchemaPart {
  const SchemaJson* json;
  std::string pointer;  // "" of the whole
};

// An error's sentence without its full stop, to be part of another one.
std::string WithoutStop(const std::exception& error);

// Schemas that a value has to satisfy all together.
using Conjunction = std::vector<SchemaPart>;

class SchemaDocument {
 public:
  static constexpr size_t kMaxBytes = size_t{256} << 10;

  // `what` is what messages call it, e.g. "The JSON schema". Errors: kBadRequest for text that is
  // no JSON.
  SchemaDocument(std::string_view text, std::string what);

  SchemaPart root() const { return {&json_, ""}; }
  // The part that "$ref" of a schema leads to. Errors: kBadRequest.
  SchemaPart Referred(const SchemaPart& schema) const;
  // Errors: kBadRequest for what is neither true, false nor an object, and for an object with a
  // keyword that is not served.
  void Check(const SchemaPart& schema) const;
  // A member of a schema, or null.
  static const SchemaJson* Find(const SchemaPart& schema, const char* keyword);
  SchemaPart Child(const SchemaPart& schema, std::string_view keyword) const;
  static SchemaPart Element(const SchemaPart& list, size_t index);
  static SchemaPart Member(const SchemaPart& object, const std::string& key,
                           const SchemaJson& value);
  // The schemas of a list, which may not be empty: allOf, anyOf, oneOf, prefixItems.
  std::vector<SchemaPart> List(const SchemaPart& schema, const char* keyword) const;
  // A whole number >= 0. Errors: kBadRequest.
  std::optional<uint64_t> Count(const SchemaPart& schema, const char* keyword) const;

  [[noreturn]] void Fail(const SchemaPart& schema, const std::string& sentence) const;
  // What is wrong with a keyword's value or use.
  [[noreturn]] void Fail(const SchemaPart& schema, std::string_view keyword,
                         const std::string& what) const;

 private:
  std::string what_;
  SchemaJson json_;
};

}  // namespace hillstar
