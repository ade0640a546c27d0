#include "tokenizer/answer_reader.h"

#include <algorithm>

#include "core/check.h"
#include "tokenizer/tag_search.h"

namespace hillstar {
namespace {

using Kind = AnswerDelta::Kind;

constexpr std::string_view kTags[] = {"<think>", "</think>", "<tool_call>"};
enum Tag { kThinkOpen, kThinkClose, kCallOpen };
constexpr uint32_t kThinkTags = 1u << kThinkOpen | 1u << kThinkClose;

constexpr std::string_view kBlanks = " \t\r\n";

// How far to look for a </think> at once; longer than that tag.
constexpr size_t kThoughtWindowBytes = 256;

// Where the character at `pos` of whole UTF-8 characters ends.
size_t EndOfCharacter(std::string_view text, size_t pos) {
  do {
    ++pos;
  } while (pos < text.size() && (text[pos] & 0xC0) == 0x80);
  return pos;
}

}  // namespace

AnswerReader::AnswerReader(const AnswerReaderOptions& options)
    : reads_calls_(options.reads_calls),
      schemas_(std::make_shared<ToolSchemas>(options.tools)),
      splitter_(options.starts_thinking) {}

AnswerReader::AnswerReader(std::shared_ptr<ToolSchemas> schemas, int64_t num_calls)
    : reads_calls_(true),
      is_inner_(true),
      schemas_(std::move(schemas)),
      splitter_(false),
      num_calls_(num_calls) {}

std::vector<AnswerDelta> AnswerReader::Push(std::string_view text) {
  Deltas deltas;
  Take(utf8_.Push(text), &deltas);
  return deltas;
}

std::vector<AnswerDelta> AnswerReader::Finish() {
  Deltas deltas;
  Take(utf8_.Finish(), &deltas);
  while (call_ != nullptr) {
    call_->Finish(rest(), &deltas);
    if (call_->state() == ToolCallReader::State::kCall) pos_ = text_.size();
    LeaveCall(&deltas);
    Take("", &deltas);  // what was no call may hold another one
  }
  if (thought_ != nullptr) FinishThoughtCalls(&deltas);
  Split(rest(), &deltas);
  pos_ = text_.size();
  TellPiece(splitter_.Finish(), &deltas);
  if (!is_behind_call_) AppendDelta(Kind::kContent, -1, blanks_, &deltas);
  return deltas;
}

void AnswerReader::Take(std::string_view text, Deltas* deltas) {
  text_ += text;
  bool goes_on = true;
  while (goes_on) {
    goes_on = thought_ != nullptr ? ReadThoughtCalls(deltas)
              : call_ != nullptr  ? ReadCall(deltas)
                                  : ReadText(deltas);
  }
  // A call that has a name is never read again.
  size_t keep_from = pos_;
  if (thought_ != nullptr) keep_from = thought_pos_;
  if (call_ != nullptr && !call_->has_begun()) keep_from = call_pos_;
  text_.erase(0, keep_from);
  pos_ -= keep_from;
  call_pos_ -= std::min(call_pos_, keep_from);
  thought_pos_ -= std::min(thought_pos_, keep_from);
}

bool AnswerReader::ReadText(Deltas* deltas) {
  const bool is_inner_thought = is_inner_ && splitter_.is_thinking();
  const bool reads_calls = reads_calls_ && !is_inner_thought;
  const FoundTag found = FindTag(rest(), kTags, reads_calls ? ~0u : kThinkTags);
  Split(rest().substr(0, found.pos), deltas);
  pos_ += found.pos;
  if (found.tag < 0) return false;
  const size_t begin = pos_;
  pos_ += kTags[found.tag].size();
  if (found.tag != kCallOpen) {
    Split(kTags[found.tag], deltas);
    return true;
  }
  // The splitter may keep a '<' back, which can no longer become a tag of its own.
  TellPiece(splitter_.Finish(), deltas);
  if (splitter_.is_thinking()) {
    thought_.reset(new AnswerReader(schemas_, num_calls_));
    thought_pos_ = pos_ = begin;
  } else {
    call_ = std::make_unique<ToolCallReader>(*schemas_, num_calls_);
    call_pos_ = pos_;
  }
  return true;
}

bool AnswerReader::ReadCall(Deltas* deltas) {
  pos_ += call_->Read(rest(), deltas);
  if (call_->state() == ToolCallReader::State::kReading) return false;
  LeaveCall(deltas);
  return true;
}

void AnswerReader::LeaveCall(Deltas* deltas) {
  const std::unique_ptr<ToolCallReader> call = std::move(call_);
  if (call->state() == ToolCallReader::State::kNoCall) {
    pos_ = call_pos_;
    return Split(kTags[kCallOpen], deltas);
  }
  ++num_calls_;
  is_closed_ = call->is_closed();
  was_cut_ = call->was_cut();
  is_behind_call_ = true;
  blanks_.clear();
  const std::string& stray = call->stray_text();
  if (stray.find_first_not_of(kBlanks) != std::string::npos) Split(stray, deltas);
}

// Goes character by character, so that it is known where something came that is no call.
bool AnswerReader::ReadThoughtCalls(Deltas* deltas) {
  const std::string_view window = rest().substr(0, kThoughtWindowBytes);
  const bool is_last = window.size() == rest().size();
  const FoundTag close = FindTag(window, kTags, 1u << kThinkClose);
  const size_t end = pos_ + close.pos;
  while (pos_ < end) {
    const size_t next = EndOfCharacter(text_, pos_);
    const bool are_calls = TakeThoughtDeltas(thought_->Push(rest().substr(0, next - pos_)));
    pos_ = next;
    if (!are_calls) {
      GiveThoughtCallsUp(pos_ - thought_->rest().size(), deltas);
      return true;
    }
  }
  if (close.tag < 0) return !is_last;
  GiveThoughtCallsUp(end, deltas);
  return true;
}

// False if there is anything else than calls.
bool AnswerReader::TakeThoughtDeltas(const Deltas& deltas) {
  for (const AnswerDelta& delta : deltas) {
    if (delta.call < 0) return false;
    AppendDelta(delta.kind, delta.call, delta.text, &thought_deltas_);
  }
  return true;
}

void AnswerReader::GiveThoughtCallsUp(size_t end, Deltas* deltas) {
  Split(std::string_view(text_).substr(thought_pos_, end - thought_pos_), deltas);
  pos_ = end;
  thought_.reset();
  thought_deltas_.clear();
}

void AnswerReader::FinishThoughtCalls(Deltas* deltas) {
  const bool are_calls =
      TakeThoughtDeltas(thought_->Push(rest())) && TakeThoughtDeltas(thought_->Finish());
  const bool are_whole = thought_->num_calls_ > num_calls_ && thought_->is_closed_;
  if (!are_calls || !are_whole) return GiveThoughtCallsUp(text_.size(), deltas);
  num_calls_ = thought_->num_calls_;
  is_behind_call_ = true;
  blanks_.clear();
  pos_ = text_.size();
  std::ranges::move(thought_deltas_, std::back_inserter(*deltas));
}

void AnswerReader::Split(std::string_view text, Deltas* deltas) {
  TellPiece(splitter_.Push(text), deltas);
}

void AnswerReader::TellPiece(const ThinkSplitter::Piece& piece, Deltas* deltas) {
  AppendDelta(Kind::kReasoning, -1, piece.reasoning, deltas);
  TellContent(piece.content, deltas);
}

// Keeps white space at the end back, as it does not count if a call follows.
void AnswerReader::TellContent(std::string_view content, Deltas* deltas) {
  if (!reads_calls_) return AppendDelta(Kind::kContent, -1, content, deltas);
  const size_t last = content.find_last_not_of(kBlanks);
  if (last == std::string_view::npos) {
    blanks_ += content;
    return;
  }
  AppendDelta(Kind::kContent, -1, blanks_, deltas);
  AppendDelta(Kind::kContent, -1, content.substr(0, last + 1), deltas);
  blanks_ = std::string(content.substr(last + 1));
  is_behind_call_ = false;
}

void Answer::Apply(const AnswerDelta& delta) {
  switch (delta.kind) {
    case Kind::kReasoning: reasoning += delta.text; return;
    case Kind::kContent: content += delta.text; return;
    case Kind::kCallBegin: tool_calls.push_back({delta.text, ""}); return;
    case Kind::kCallArguments:
      CHECK(delta.call + 1 == int64_t(tool_calls.size()));
      tool_calls.back().arguments_json += delta.text;
      return;
    case Kind::kCallEnd: return;
  }
}

Answer ReadAnswer(std::string_view text, const AnswerReaderOptions& options) {
  AnswerReader reader(options);
  Answer answer;
  for (const AnswerDelta& delta : reader.Push(text)) answer.Apply(delta);
  for (const AnswerDelta& delta : reader.Finish()) answer.Apply(delta);
  return answer;
}

}  // namespace hillstar
