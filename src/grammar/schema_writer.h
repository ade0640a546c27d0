// Makes grammar rules of JSON schemas: of each conjunction of schemas one, which refers to others
// where values hold values. One thread at a time.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/expression.h"
#include "grammar/schema_logic.h"

namespace hillstar {

// Entries that follow one another in their order: members of an object, arguments of a call.
struct EntryChain {
  struct Entry {
    ExpressionPtr text;
    bool is_required;
  };
  std::vector<Entry> entries;
  ExpressionPtr further;  // one more entry, of those that nothing names; Never() for none
  ExpressionPtr before_first, before_next, closing;
  uint64_t min = 0;
  std::optional<uint64_t> max;
};

class SchemaWriter {
 public:
  // `forbidden` may stand nowhere within a text, whatever the schema says; "" for nothing. The
  // others outlive the object.
  SchemaWriter(SchemaLogic* logic, TextLanguages* languages, GrammarSource* source,
               WorkBudget* budget, std::string forbidden);

  // JSON of a value that satisfies all schemas: the call of a rule, which Finish completes.
  ExpressionPtr Value(const Conjunction& schemas);
  // Any JSON object.
  ExpressionPtr AnyObject();
  // A value as an argument of a tool call: strings as they are, all else as JSON. A string is none
  // that a reader would take for JSON of one of `other_types`.
  ExpressionPtr Argument(const Conjunction& schemas, ValueTypes other_types);
  // Writes the rules of all values asked for so far. Errors: kBadRequest.
  void Finish();

  // The members that the shape names, in the order of its schemas, and what it says of the rest.
  struct Members {
    struct Named {
      std::string name;
      Conjunction schema;
      bool is_required;
    };
    struct Class {
      std::optional<Dfa> names;  // any if there is none
      Conjunction schema;
    };
    std::vector<Named> named;
    std::vector<Class> further;
    bool is_impossible = false;  // a required member may have no value
  };
  Members MembersOf(const Shape& shape, bool allows_unnamed);
  // Errors: kBadRequest, at `place`, if members that nothing names would have to be counted.
  ExpressionPtr Chain(const EntryChain& chain, const SchemaPart& place);

 private:
  ExpressionPtr ShapeText(const Shape& shape, ValueTypes types);
  std::vector<SchemaJson> ValuesOf(const Shape& shape);
  ExpressionPtr Literal(const SchemaJson& value);
  ExpressionPtr StringText(const Shape& shape);
  ExpressionPtr AnyString(uint32_t min, std::optional<uint32_t> max);
  const Dfa& RawTexts(ValueTypes other_types);
  ExpressionPtr ArrayText(const Shape& shape);
  ExpressionPtr ObjectText(const Shape& shape);
  ExpressionPtr Number(const Shape& shape, ValueTypes types);
  ExpressionPtr AnyValue();
  ExpressionPtr FurtherMembers(const Members& members);
  std::vector<std::string> NamesOf(const Shape& shape);
  void AddClasses(const Shape& shape, bool allows_unnamed, const std::vector<std::string>& names,
                  Members* members);
  std::optional<Dfa> AllowedNames(const Shape& shape);
  Dfa TextsOfShape(const Shape& shape);
  void AddClassSchemas(const SchemaPart& part, const std::vector<std::string>& patterns,
                       uint32_t which, Conjunction* schemas);
  Dfa NamesOfClass(const std::vector<SchemaPart>& places, const std::vector<std::string>& patterns,
                   uint32_t which, const std::vector<std::string>& taken);
  ExpressionPtr ChainEnd(const EntryChain& chain, uint64_t count);
  // The shape's lengths, patterns and formats, of `texts`.
  Dfa Restricted(Dfa texts, const Shape& shape);
  uint32_t CheckedMin(const Shape& shape, uint64_t min, uint64_t limit, const char* keyword);
  Dfa WithoutForbidden(Dfa texts);
  ExpressionPtr Named(const char* name, const std::function<ExpressionPtr()>& make);

  SchemaLogic* logic_;
  TextLanguages* languages_;
  GrammarSource* source_;
  WorkBudget* budget_;
  std::string forbidden_;
  std::map<std::vector<const SchemaJson*>, uint32_t> rules_;
  std::vector<std::pair<uint32_t, Conjunction>> unfinished_;
  std::map<std::string, ExpressionPtr> named_;  // rules that schemas share
  std::map<ValueTypes, Dfa> raw_texts_;
  ExpressionPtr blanks_, colon_;
};

}  // namespace hillstar
