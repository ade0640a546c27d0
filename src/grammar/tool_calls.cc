// Grammars of answers that call tools, as models of the GLM family write calls and as
// tokenizer/tool_call_reader.h reads them.
#include <fmt/format.h>

#include <algorithm>

#include "formats/json_scan.h"
#include "grammar/expression.h"
#include "grammar/grammar.h"
#include "grammar/pattern.h"
#include "grammar/push_down.h"
#include "grammar/schema_writer.h"
#include "hillstar/error.h"
#include "tokenizer/argument_json.h"
#include "tokenizer/tool_call_reader.h"

namespace hillstar {
namespace {

constexpr size_t kMaxTools = 512;
constexpr size_t kMaxNameBytes = 256;
constexpr std::string_view kValueClose = "</arg_value>";
// Arguments that no schema names have plain names.
constexpr const char* kFurtherNames = "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$";
// No argument's name, as it has a blank in front.
constexpr const char* kNoProperty = " further";

bool IsBlank(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

// A name that stays itself between tags: readers strip blanks.
bool IsArgumentName(std::string_view name) {
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
    if (!IsToolName(tool.name)) {
      throw Error(ErrorCode::kBadRequest,
                  fmt::format("The tool name {} cannot be written in a call: a name has letters, "
                              "digits and any of _-.:/ and at most {} bytes.",
                              Quoted(tool.name), kMaxToolNameBytes));
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
    const ArgumentSchema types(tool.parameters_json);
    std::vector<ExpressionPtr> ways;
    for (const Conjunction& parts : logic.Alternatives({document.root()})) {
      if (parts.empty()) {
        ways.push_back(Tag("</tool_call>"));
        continue;
      }
      const Shape shape = logic.ShapeOfParts(parts);
      if ((shape.types & kObjectValue) == 0) continue;
      ways.push_back(Chain(shape, types, logic, languages, &writer));
    }
    if (std::ranges::all_of(ways, IsNever)) {
      document.Fail(document.root(), "no object of arguments satisfies it");
    }
    writer.Finish();
    return Alternative(std::move(ways));
  }

  // `types` are those that a reader of the call goes by.
  ExpressionPtr Chain(const Shape& shape, const ArgumentSchema& types, SchemaLogic& logic,
                      TextLanguages& languages, SchemaWriter* writer) {
    if (shape.values) {
      logic.document().Fail(shape.place(), "enum and const are not supported for all arguments");
    }
    const SchemaWriter::Members members = writer->MembersOf(shape, false);
    if (members.is_impossible) return Never();
    EntryChain chain;
    for (const auto& member : members.named) {
      if (!IsArgumentName(member.name)) {
        logic.document().Fail(
            shape.place(),
            fmt::format("the argument name {} cannot be written in a call", Quoted(member.name)));
      }
      chain.entries.push_back(
          {Entry(Bytes(member.name), member.schema, types.TypesOf(member.name), writer),
           member.is_required});
    }
    std::vector<ExpressionPtr> further;
    for (const auto& one : members.further) {
      const Dfa names = Intersection(*one.names, *languages.OfPattern(kFurtherNames), &budget_);
      further.push_back(Entry(Written(names, TextForm::kRaw, &budget_), one.schema,
                              types.TypesOf(kNoProperty), writer));
    }
    chain.further = Alternative(std::move(further));
    chain.before_first = chain.before_next = Nothing();
    chain.closing = Tag("</tool_call>");
    chain.min = shape.min_members;
    chain.max = shape.max_members;
    return writer->Chain(chain, shape.place());
  }

  // `types`: what a reader of the call takes the value's text for where it can.
  ExpressionPtr Entry(const ExpressionPtr& name, const Conjunction& schema, JsonTypes types,
                      SchemaWriter* writer) {
    const ExpressionPtr value = writer->Argument(schema, OtherTypes(types));
    return Concatenation(
        {Tag("<arg_key>"), name, Tag("</arg_key>"), Tag("<arg_value>"), value, Tag(kValueClose)});
  }

  // The types beside strings.
  static ValueTypes OtherTypes(JsonTypes types) {
    ValueTypes others = 0;
    if ((types & kJsonNull) != 0) others |= kNullValue;
    if ((types & kJsonBoolean) != 0) others |= kBooleanValue;
    if ((types & (kJsonInteger | kJsonNumber)) != 0) others |= kIntegerValue | kFractionValue;
    if ((types & kJsonArray) != 0) others |= kArrayValue;
    if ((types & kJsonObject) != 0) others |= kObjectValue;
    return others;
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
