// What conjunctions of schemas mean: the alternatives that they leave, whether a value satisfies
// them, and whether two of them exclude each other. One thread at a time.
#pragma once

#include <string>
#include <vector>

#include "grammar/schema_document.h"
#include "grammar/schema_shape.h"
#include "grammar/text_language.h"
#include "grammar/work_budget.h"

namespace hillstar {

class SchemaLogic {
 public:
  // All outlive the object.
  SchemaLogic(const SchemaDocument* document, TextLanguages* languages, WorkBudget* budget)
      : document_(document), languages_(languages), budget_(budget) {}

  // The conjunction with $ref, allOf, anyOf and oneOf followed: a value satisfies it where it
  // satisfies one of the alternatives, which are none for schemas that nothing satisfies.
  // Errors: kBadRequest for what is not supported, among it a oneOf of which a value might satisfy
  // two, and for schemas that refer to themselves without end.
  std::vector<Conjunction> Alternatives(const Conjunction& schemas);

  Shape ShapeOfParts(const Conjunction& parts) { return ShapeOf(*document_, parts, budget_); }
  // Whether a value of enum or const satisfies what else the shape says.
  bool Satisfies(const SchemaJson& value, const Shape& shape) {
    return SatisfiesShape(value, shape, false);
  }
  // What an object's member of this name has to satisfy. `is_declared`, if not null, gets whether a
  // schema names it, under properties or by a pattern.
  Conjunction MemberSchema(const Shape& shape, const std::string& name,
                           bool* is_declared = nullptr);

  // Whether propertyNames lets an object have a member of this name.
  bool AllowsName(const Shape& shape, const std::string& name, bool tolerates_formats = false);
  // The texts that match a pattern of `place`. Errors: kBadRequest, with the place.
  std::shared_ptr<const Dfa> TextsOfPattern(const SchemaPart& place, const std::string& pattern);

  const SchemaDocument& document() const { return *document_; }

 private:
  // A schema that is to be followed, and the schemas that led to it.
  struct Pending {
    SchemaPart part;
    std::vector<const SchemaJson*> path;
  };
  struct Branches {
    std::vector<Pending> branches;
    SchemaPart schema;  // whose anyOf or oneOf it is
    bool is_one_of;
  };
  struct Search {
    std::vector<Pending> pending;
    std::vector<Branches> groups;
    Conjunction done;
  };

  void Follow(Search search, std::vector<Conjunction>* alternatives);
  // False if nothing satisfies the part.
  bool FollowOne(Search* search);
  // `others` are all else that a value has to satisfy, unless more groups follow.
  void RefuseOverlaps(const Branches& group, const Conjunction& others, bool are_all);

  // `tolerates_formats`: a validator may take for a format what we never write.
  bool SatisfiesShape(const SchemaJson& value, const Shape& shape, bool tolerates_formats);
  bool SatisfiesAll(const SchemaJson& value, const Conjunction& schemas, bool tolerates_formats);
  bool SatisfiesText(const std::string& text, const Shape& shape, bool tolerates_formats);
  bool SatisfiesNumber(const SchemaJson& value, const Shape& shape, bool tolerates_formats);

  struct Comparison {
    Conjunction others;  // what both have to satisfy, followed already
    bool written_only;   // only values of types that are written count
    int depth;
  };
  // True only if no value satisfies both.
  bool AreDisjoint(const Conjunction& a, const Conjunction& b, const Comparison& how);
  bool AreDisjoint(const Shape& a, const Shape& b, const Comparison& how);
  bool AreObjectsDisjoint(const Shape& a, const Shape& b, int depth);
  bool AreArraysDisjoint(const Shape& a, const Shape& b, int depth);
  bool AreValuesOutside(const Shape& values, const Shape& other);

  const SchemaDocument* document_;
  TextLanguages* languages_;
  WorkBudget* budget_;
  // While it is asked whether schemas overlap, oneOf is taken for anyOf, which only makes them
  // larger.
  bool checks_one_of_ = true;
};

}  // namespace hillstar
