// Grammars of JSON texts.
#include "grammar/expression.h"
#include "grammar/grammar.h"
#include "grammar/push_down.h"
#include "grammar/schema_writer.h"
#include "hillstar/error.h"

namespace hillstar {

std::shared_ptr<const Grammar> GrammarOfJsonSchema(std::string_view schema_json) {
  WorkBudget budget;
  const SchemaDocument document(schema_json, "The JSON schema");
  TextLanguages languages(&budget);
  SchemaLogic logic(&document, &languages, &budget);
  GrammarSource source;
  SchemaWriter writer(&logic, &languages, &source, &budget, "");
  const uint32_t root = source.AddRule("#");
  source.SetExpression(root, writer.Value({document.root()}));
  writer.Finish();
  return std::make_shared<const Grammar>(Compile(source, root, &budget));
}

std::shared_ptr<const Grammar> GrammarOfJsonObject() {
  // One for all requests, so that its masks are found once.
  static const std::shared_ptr<const Grammar> grammar = [] {
    WorkBudget budget;
    const SchemaDocument document("true", "The JSON schema");
    TextLanguages languages(&budget);
    SchemaLogic logic(&document, &languages, &budget);
    GrammarSource source;
    SchemaWriter writer(&logic, &languages, &source, &budget, "");
    const uint32_t root = source.AddRule("#");
    source.SetExpression(root, writer.AnyObject());
    return std::make_shared<const Grammar>(Compile(source, root, &budget));
  }();
  return grammar;
}

}  // namespace hillstar
