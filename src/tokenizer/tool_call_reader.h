// One tool call of an answer as it streams: what follows a <tool_call>. Two forms are read:
//   NAME<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>     as GLM writes it
//   {"name": NAME, "arguments": {K: V, ...}}</tool_call>                as other models do
// It keeps no text back: what it cannot take yet stays with the caller. One thread at a time.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/answer_delta.h"
#include "tokenizer/argument_json.h"

namespace hillstar {

// What a tool may be called: 1 to 128 letters, digits and _ - . : /
bool IsToolName(std::string_view name);
inline constexpr size_t kMaxToolNameBytes = 128;

class ToolCallReader {
 public:
  enum class State {
    kReading,
    kCall,   // the call has ended
    kNoCall  // what followed is no call; nothing has come out
  };

  // `schemas` outlives the reader. `call` is the call's number in what comes out.
  ToolCallReader(ToolSchemas& schemas, int64_t call) : schemas_(schemas), call_(call) {}

  // Returns how many bytes of `text` it took. The rest is to be given again, followed by more,
  // unless the state is no longer kReading: then it is what stands behind the call.
  size_t Read(std::string_view text, std::vector<AnswerDelta>* deltas);
  // Ends the reading where the text ends; `rest` is what Read has not taken. A call that has a
  // name followed by a tag is ended, its arguments closed.
  void Finish(std::string_view rest, std::vector<AnswerDelta>* deltas);

  State state() const { return state_; }
  // Its name has come out.
  bool has_begun() const { return place_ != Place::kName && place_ != Place::kObject; }
  bool is_closed() const { return is_closed_; }  // by a tag, not by the end of the text
  bool was_cut() const { return was_cut_; }      // inside an argument
  // Text that stood between the parts of the call, where none belongs.
  const std::string& stray_text() const { return stray_text_; }

 private:
  enum class Place { kName, kObject, kBehindObject, kBetween, kKey, kBehindKey, kValue };

  bool ReadPart(std::string_view* rest, std::vector<AnswerDelta>* deltas);
  void TakeText(std::string_view text, std::vector<AnswerDelta>* deltas);
  void TakeTag(int tag, std::vector<AnswerDelta>* deltas);
  void TakeName(std::string_view text);
  size_t TakeObject(std::string_view text, std::vector<AnswerDelta>* deltas);
  bool EndObject(std::vector<AnswerDelta>* deltas);
  bool Begin(std::vector<AnswerDelta>* deltas);
  void BeginValue(std::vector<AnswerDelta>* deltas);
  void TakeValue(std::string_view text, std::vector<AnswerDelta>* deltas);
  void EndValue(std::vector<AnswerDelta>* deltas);
  void End(std::vector<AnswerDelta>* deltas);
  void Tell(std::string_view arguments, std::vector<AnswerDelta>* deltas) const;

  ToolSchemas& schemas_;
  const int64_t call_;
  State state_ = State::kReading;
  Place place_ = Place::kName;
  bool is_closed_ = false, was_cut_ = false;
  std::string stray_text_;
  std::string name_;
  const ArgumentSchema* schema_ = nullptr;  // once there is a name

  // The JSON object in the place of a name.
  std::string object_;
  int depth_ = 0;
  bool is_in_string_ = false, is_escaped_ = false;

  // The argument that is being read.
  std::set<std::string> keys_;  // that came; one that comes again is left out
  std::string key_;
  JsonTypes types_ = kAnyJsonType;
  bool is_left_out_ = false;
  bool is_text_ = false;  // is told piece by piece, as a JSON string
  char first_ = 0;        // the value's first character that is not blank
  std::string value_;     // else what came of it
};

}  // namespace hillstar
