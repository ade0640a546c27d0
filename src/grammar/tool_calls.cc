// Grammars of answers that call tools, as models of the GLM family write calls. What an argument's
// text means is decided by tokenizer/argument_json.h, which these grammars stay on the safe side
// of.
#include <fmt/format.h>

#include <algorithm>

#include "formats/json_scan.h"
#include "grammar/expression.h"
#include "grammar/grammar.h"
#include "grammar/pattern.h"
#include "grammar/push_down.h"
#include "grammar/schema_writer.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr size_t kMaxTools = 512;
constexpr size_t kMaxNameBytes = 256;
constexpr std::string_view kValueClose = "</arg_value>";
// Arguments that no schema names have plain names.
constexpr const char* kFurtherNames = "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$";

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// A name that stays itself between tags: readers strip blanks.
bool IsSafeName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name.front() != ' ' &&
         name.back() != ' ' && std::ranges::none_of(name, [](char c) {
           return static_cast<unsigned char>(c) < ' ' || c == '<';
         });
}

class ToolCallWriter {
 public:
  explicit ToolCallWriter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  std::shared_ptr<const Grammar> Write(std::span<const ToolSpec> tools, ToolCallRule rule,
                                       bool parallel) {
    if (tools.empty() || tools.size() > kMaxTools) {
      throw Error(ErrorCode::kBadRequest, fmt::format("There are {} tools; there may be 1 to {}.",
                                                      tools.size(), kMaxTools));
    }
    std::vector<ExpressionPtr> calls;
    for (const ToolSpec& tool : tools) calls.push_back(Call(tool));
    const ExpressionPtr call = source_.AddAndCall("call", Alternative(std::move(calls)), true);
    ExpressionPtr all = Repeat(call, 1, parallel ? std::optional<uint32_t>() : 1);
    if (rule == ToolCallRule::kAuto) all = Concatenation({FreeText(), Optional(all)});
    const uint32_t root = source_.AddRule("answer");
    source_.SetExpression(root, all);
    return std::make_shared<const Grammar>(Compile(source_, root, &budget_));
  }

 private:
  // One of the tags, which is a token wherever the tokenizer has one.
  ExpressionPtr Tag(std::string_view text) const {
    const std::optional<int32_t> id = tokenizer_.AddedTokenId(text);
    return id ? Token(*id) : Bytes(text);
  }

  // Text without a call in it, and reasoning that is closed or opened again.
  ExpressionPtr FreeText() {
    constexpr SymbolRange kCharacters[] = {{1, 0xD7FF}, {0xE000, 0x10FFFF}};
    const Dfa texts =
        Intersection(TextsOf(kCharacters), TextsWithout("<tool_call>", &budget_), &budget_);
    const ExpressionPtr text = Written(texts, TextForm::kRaw, &budget_);
    std::vector<ExpressionPtr> tags;
    for (const char* tag : {"<think>", "</think>"}) {
      if (tokenizer_.AddedTokenId(tag)) tags.push_back(Tag(tag));
    }
    if (tags.empty()) return text;
    return Concatenation(
        {text, Repeat(Concatenation({Alternative(std::move(tags)), text}), 0, {})});
  }

  ExpressionPtr Call(const ToolSpec& tool) {
    if (!IsSafeName(tool.name) || tool.name.find(' ') != std::string::npos) {
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("The tool name {} cannot be written in a call: it has to have 1 to "
                              "{} bytes, without blanks, control characters and <.",
                              Quoted(tool.name), kMaxNameBytes));
    }
    ExpressionPtr arguments = Tag("</tool_call>");
    if (!IsBlank(tool.parameters_json)) arguments = Arguments(tool);
    return Concatenation({Tag("<tool_call>"), Bytes(tool.name), arguments});
  }

  // With the end of the call.
  ExpressionPtr Arguments(const ToolSpec& tool) {
    const SchemaDocument document(tool.parameters_json,
                                  fmt::format("The schema of the tool {}", Quoted(tool.name)));
    TextLanguages languages(&budget_);
    SchemaLogic logic(&document, &languages, &budget_);
    SchemaWriter writer(&logic, &languages, &source_, &budget_, std::string(kValueClose));
    std::vector<ExpressionPtr> ways;
    for (const Conjunction& parts : logic.Alternatives({document.root()})) {
      if (parts.empty()) {
        ways.push_back(Tag("</tool_call>"));
        continue;
      }
      const Shape shape = logic.ShapeOfParts(parts);
      if ((shape.types & kObjectValue) != 0)
        ways.push_back(Chain(shape, logic, languages, &writer));
    }
    if (std::ranges::all_of(ways, IsNever)) {
      document.Fail(document.root(), "no object of arguments satisfies it");
    }
    writer.Finish();
    return Alternative(std::move(ways));
  }

  ExpressionPtr Chain(const Shape& shape, SchemaLogic& logic, TextLanguages& languages,
                      SchemaWriter* writer) {
    if (shape.values) {
      logic.document().Fail(shape.place(), "enum and const are not supported for all arguments");
    }
    const SchemaWriter::Members members = writer->MembersOf(shape, false);
    if (members.is_impossible) return Never();
    EntryChain chain;
    for (const auto& member : members.named) {
      if (!IsSafeName(member.name)) {
        logic.document().Fail(
            shape.place(),
            fmt::format("the argument name {} cannot be written in a call", Quoted(member.name)));
      }
      chain.entries.push_back(
          {Entry(Bytes(member.name), member.schema, logic, writer), member.is_required});
    }
    std::vector<ExpressionPtr> further;
    for (const auto& one : members.further) {
      const Dfa names = Intersection(*one.names, *languages.OfPattern(kFurtherNames), &budget_);
      further.push_back(Entry(Written(names, TextForm::kRaw, &budget_), one.schema, logic, writer));
    }
    chain.further = Alternative(std::move(further));
    chain.before_first = chain.before_next = Nothing();
    chain.closing = Tag("</tool_call>");
    chain.min = shape.min_members;
    chain.max = shape.max_members;
    return writer->Chain(chain, shape.place());
  }

  ExpressionPtr Entry(const ExpressionPtr& name, const Conjunction& schema, SchemaLogic& logic,
                      SchemaWriter* writer) {
    const ExpressionPtr value = writer->Argument(schema, OtherTypes(schema, logic));
    return Concatenation(
        {Tag("<arg_key>"), name, Tag("</arg_key>"), Tag("<arg_value>"), value, Tag(kValueClose)});
  }

  // The types beside strings that a reader of the call may take an argument's text for: those of
  // its schema, but all where that takes more than looking at the tool's properties.
  static ValueTypes OtherTypes(const Conjunction& schemas, SchemaLogic& logic) {
    const SchemaPart root = logic.document().root();
    if (schemas.size() != 1 || !IsSimple(schemas[0]) || SchemaDocument::Find(root, "$ref")) {
      return kAnyValue;
    }
    const std::string& pointer = schemas[0].pointer;
    const bool is_property =
        pointer.starts_with("/properties/") && std::ranges::count(pointer, '/') == 2;
    if (!is_property && pointer != "/additionalProperties") return kAnyValue;
    ValueTypes types = 0;
    for (const Conjunction& parts : logic.Alternatives(schemas)) {
      const Shape shape = logic.ShapeOfParts(parts);
      ValueTypes found = shape.types;
      if (shape.values) {
        ValueTypes of_values = 0;
        for (const SchemaJson& value : *shape.values) of_values |= TypeOf(value);
        found &= of_values;
      }
      types |= found;
    }
    return types & ~kStringValue;
  }

  // Not a reference with something beside it, and no allOf.
  static bool IsSimple(const SchemaPart& schema) {
    if (!schema.json->is_object()) return true;
    if (schema.json->contains("allOf")) return false;
    if (schema.json->contains("$ref")) return false;
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const SchemaJson* parts = SchemaDocument::Find(schema, keyword);
      if (parts == nullptr || !parts->is_array()) continue;
      for (size_t i = 0; i < parts->size(); ++i) {
        if (!IsSimple(SchemaDocument::Element({parts, ""}, i))) return false;
      }
    }
    return true;
  }

  const Tokenizer& tokenizer_;
  WorkBudget budget_;
  GrammarSource source_;
};

}  // namespace

std::shared_ptr<const Grammar> GrammarOfToolCalls(std::span<const ToolSpec> tools,
                                                  ToolCallRule rule, bool parallel,
                                                  const Tokenizer& tokenizer) {
  return ToolCallWriter(tokenizer).Write(tools, rule, parallel);
}

}  // namespace hillstar
