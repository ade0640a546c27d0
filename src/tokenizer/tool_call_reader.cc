#include "tokenizer/tool_call_reader.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "formats/json_scan.h"
#include "hillstar/error.h"
#include "tokenizer/tag_search.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;
using Kind = AnswerDelta::Kind;

constexpr std::string_view kTags[] = {"<arg_key>",    "</arg_key>",  "<arg_value>",
                                      "</arg_value>", "<tool_call>", "</tool_call>"};
enum Tag { kKeyOpen, kKeyClose, kValueOpen, kValueClose, kCallOpen, kCallClose };
constexpr size_t kMaxTagBytes = 12;
constexpr uint32_t Bit(Tag tag) { return 1u << tag; }

constexpr std::string_view kBlanks = " \t\r\n";
bool IsBlank(std::string_view text) {
  return text.find_first_not_of(kBlanks) == std::string_view::npos;
}
std::string_view Strip(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

// With the blanks around a name. It bounds what is kept back of a text that only mentions
// <tool_call>.
constexpr size_t kMaxNameSpan = 512;

// The arguments of a call that came as a JSON object; also where they are a text that holds it.
std::optional<std::string> ArgumentsOf(const Json& call) {
  for (const char* member : {"arguments", "parameters"}) {
    const auto found = call.find(member);
    if (found == call.end() || found->is_null()) continue;
    Json arguments = *found;
    if (arguments.is_string()) {
      const std::string text = arguments.get<std::string>();
      if (IsBlank(text)) continue;
      try {
        arguments = ParseOrderedJson(text, "arguments", text.size());
      } catch (const Error&) {
        return std::nullopt;
      }
    }
    if (arguments.is_null() || (arguments.is_array() && arguments.empty())) continue;
    if (!arguments.is_object()) return std::nullopt;
    return arguments.dump();
  }
  return "{}";
}

}  // namespace

bool IsToolName(std::string_view name) {
  const auto belongs = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kMaxToolNameBytes && std::ranges::all_of(name, belongs);
}

size_t ToolCallReader::Read(std::string_view text, std::vector<AnswerDelta>* deltas) {
  std::string_view rest = text;
  while (state_ == State::kReading && ReadPart(&rest, deltas)) {
  }
  return text.size() - rest.size();
}

// True if a tag was taken, or a whole object.
bool ToolCallReader::ReadPart(std::string_view* rest, std::vector<AnswerDelta>* deltas) {
  if (place_ == Place::kName && Strip(name_).empty()) {
    const size_t first = rest->find_first_not_of(kBlanks);
    const bool is_near = first < kMaxNameSpan - name_.size();
    if (is_near && (*rest)[first] == '{') place_ = Place::kObject;
  }
  if (place_ == Place::kObject) {
    rest->remove_prefix(TakeObject(*rest, deltas));
    return place_ != Place::kObject;
  }
  uint32_t wanted = ~0u;
  if (place_ == Place::kName) wanted = Bit(kKeyOpen) | Bit(kCallClose);
  if (place_ == Place::kValue) wanted = Bit(kValueClose);
  if (place_ == Place::kBehindObject) wanted = Bit(kCallOpen) | Bit(kCallClose);
  // Of what is no name no more is looked at than needed: it will be read again.
  const size_t window = place_ == Place::kName ? kMaxNameSpan + kMaxTagBytes : rest->size();
  const FoundTag found = FindTag(rest->substr(0, window), kTags, wanted);
  TakeText(rest->substr(0, found.pos), deltas);
  rest->remove_prefix(found.pos);
  if (found.tag < 0 || state_ != State::kReading) return false;
  if (found.tag != kCallOpen) rest->remove_prefix(kTags[found.tag].size());
  TakeTag(found.tag, deltas);
  return true;
}

void ToolCallReader::TakeText(std::string_view text, std::vector<AnswerDelta>* deltas) {
  switch (place_) {
    case Place::kName: return TakeName(text);
    case Place::kKey: key_ += text; return;
    case Place::kValue: return TakeValue(text, deltas);
    case Place::kObject:
    case Place::kBehindObject:
    case Place::kBetween:
    case Place::kBehindKey: stray_text_ += text; return;
  }
}

void ToolCallReader::TakeTag(int tag, std::vector<AnswerDelta>* deltas) {
  if (place_ == Place::kName && !Begin(deltas)) {
    state_ = State::kNoCall;
    return;
  }
  switch (tag) {
    case kCallOpen:  // the next call; this one was not closed
    case kCallClose: is_closed_ = true; return End(deltas);
    case kKeyOpen:  // the key before it, if any, has no value and counts for nothing
      place_ = Place::kKey;
      key_.clear();
      return;
    case kKeyClose:
      if (place_ == Place::kKey) place_ = Place::kBehindKey;
      return;
    case kValueOpen:
      if (place_ == Place::kKey || place_ == Place::kBehindKey) BeginValue(deltas);
      return;
    case kValueClose:
      if (place_ == Place::kValue) EndValue(deltas);
      return;
    default: return;
  }
}

void ToolCallReader::TakeName(std::string_view text) {
  name_ += text;
  const std::string_view name = Strip(name_);
  if ((!name.empty() && !IsToolName(name)) || name_.size() > kMaxNameSpan) {
    state_ = State::kNoCall;
  }
}

bool ToolCallReader::Begin(std::vector<AnswerDelta>* deltas) {
  name_ = std::string(Strip(name_));
  if (!IsToolName(name_)) return false;
  AppendDelta(Kind::kCallBegin, call_, name_, deltas);
  schema_ = &schemas_.Of(name_);
  place_ = Place::kBetween;
  return true;
}

// Looks for the object's end. Outside of strings JSON has neither '<' nor '\', and inside of them
// no control characters: what has is soon known to be no call.
size_t ToolCallReader::TakeObject(std::string_view text, std::vector<AnswerDelta>* deltas) {
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (is_in_string_) {
      is_escaped_ = c == '\\';
      is_in_string_ = c != '"';
      if (static_cast<unsigned char>(c) < ' ') state_ = State::kNoCall;
    } else if (c == '<' || c == '\\') {
      state_ = State::kNoCall;
    } else {
      is_in_string_ = c == '"';
      if (c == '{' || c == '[') ++depth_;
      if (c == '}' || c == ']') --depth_;
    }
    if (state_ == State::kNoCall) return i;
    const bool is_end = depth_ == 0 && (c == '}' || c == ']');
    if (!is_end) continue;
    object_ += text.substr(0, i + 1);
    if (!EndObject(deltas)) state_ = State::kNoCall;
    place_ = Place::kBehindObject;
    return i + 1;
  }
  object_ += text;
  return text.size();
}

bool ToolCallReader::EndObject(std::vector<AnswerDelta>* deltas) {
  Json call;
  try {
    call = ParseOrderedJson(object_, "tool call", object_.size());
  } catch (const Error&) {
    return false;
  }
  object_.clear();
  const Json name = call.value("name", Json());
  const std::optional<std::string> arguments = ArgumentsOf(call);
  if (!name.is_string() || !arguments) return false;
  name_ = name.get<std::string>();
  if (!Begin(deltas)) return false;
  Tell(*arguments, deltas);
  return true;
}

void ToolCallReader::BeginValue(std::vector<AnswerDelta>* deltas) {
  place_ = Place::kValue;
  key_ = std::string(Strip(key_));
  const bool is_first = keys_.empty();
  is_left_out_ = !keys_.insert(key_).second;
  types_ = schema_->TypesOf(key_);
  is_text_ = types_ == kJsonString;
  first_ = 0;
  value_.clear();
  if (is_left_out_) return;
  Tell(is_first ? "{" : ",", deltas);
  Tell(QuoteJson(key_), deltas);
  Tell(is_text_ ? ":\"" : ":", deltas);
}

void ToolCallReader::TakeValue(std::string_view text, std::vector<AnswerDelta>* deltas) {
  if (is_left_out_) return;
  if (is_text_) return Tell(EscapeJson(text), deltas);
  value_ += text;
  const size_t first = text.find_first_not_of(kBlanks);
  if (first_ != 0 || first == std::string_view::npos) return;
  first_ = text[first];
  if (MayBeginOtherThanText(first_, types_)) return;
  is_text_ = true;
  Tell("\"", deltas);
  Tell(EscapeJson(value_), deltas);
}

void ToolCallReader::EndValue(std::vector<AnswerDelta>* deltas) {
  place_ = Place::kBetween;
  if (is_left_out_) return;
  Tell(is_text_ ? "\"" : ArgumentJson(value_, types_), deltas);
}

void ToolCallReader::End(std::vector<AnswerDelta>* deltas) {
  state_ = State::kCall;
  if (place_ != Place::kBehindObject) Tell(keys_.empty() ? "{}" : "}", deltas);
  AppendDelta(Kind::kCallEnd, call_, "", deltas);
}

void ToolCallReader::Tell(std::string_view arguments, std::vector<AnswerDelta>* deltas) const {
  AppendDelta(Kind::kCallArguments, call_, arguments, deltas);
}

void ToolCallReader::Finish(std::string_view rest, std::vector<AnswerDelta>* deltas) {
  switch (place_) {
    case Place::kName:
    case Place::kObject: state_ = State::kNoCall; return;
    case Place::kValue:
      TakeValue(rest, deltas);
      EndValue(deltas);
      was_cut_ = true;
      break;
    case Place::kKey:
    case Place::kBehindKey: was_cut_ = true; break;
    case Place::kBehindObject:
    case Place::kBetween: break;
  }
  End(deltas);
}

}  // namespace hillstar
