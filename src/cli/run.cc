#include "cli/run.h"

#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/request.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "cli/tools_file.h"
#include "hillstar/error.h"
#include "model/config.h"
#include "ops/backend.h"
#include "tokenizer/answer_reader.h"

namespace hillstar {
namespace {

struct Prompt {
  std::vector<int32_t> ids;
  AnswerReaderOptions reading;  // how its answer is read
};

std::string PromptText(const RunSession& session) {
  const std::string& argument = session.options.arguments[0];
  if (argument != "-") return argument;
  std::stringstream all;
  all << session.in.rdbuf();
  std::string text = std::move(all).str();
  if (CannotBeRead(session.in)) {
    throw Error(ErrorCode::kIo, "standard input, which holds the prompt, cannot be read");
  }
  if (text.empty()) throw Error(ErrorCode::kUsage, "standard input holds no prompt");
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

Prompt MakePrompt(const RunSession& session) {
  const Options& options = session.options;
  const Tokenizer& tokenizer = session.engine.tokenizer();
  const std::string text = PromptText(session);
  if (options.raw) return {RawPromptIds(tokenizer, text), {}};
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system, "", {}});
  messages.push_back({"user", text, "", {}});
  ChatOptions chat = ChatOptionsFrom(options, session.is_built_in);
  AnswerReaderOptions reading;
  if (!options.tools.empty()) {
    ToolsFile file = ReadToolsFile(options.tools);
    chat.tools_json = std::move(file.tools_json);
    reading.tools = std::move(file.tools);
    reading.reads_calls = true;
  }
  const ChatFormat& format = session.engine.chat_format();
  reading.starts_thinking = EndsThinking(format.Render(messages, chat));
  return {format.RenderIds(messages, chat, tokenizer), std::move(reading)};
}

// A turn that the model itself has ended to wait for a tool's result.
bool AsksForTools(const GenerateResult& result, const Answer& answer) {
  return !answer.tool_calls.empty() && result.end_id >= 0;
}

void PrintJson(const RunSession& session, const GenerateRequest& request,
               const GenerateResult& result, const Answer& answer) {
  using Json = nlohmann::ordered_json;
  Json calls = Json::array();
  for (const ToolCall& call : answer.tool_calls) {
    calls.push_back({{"name", call.name}, {"arguments", call.arguments_json}});
  }
  Json json;
  json["device"] = session.engine.device().id;
  json["content"] = answer.content;
  json["reasoning_content"] = answer.reasoning;
  json["tool_calls"] = std::move(calls);
  json["finish_reason"] =
      AsksForTools(result, answer) ? "tool_calls" : FinishReasonName(result.finish_reason);
  json["usage"] = {{"prompt_tokens", result.prompt_tokens},
                   {"completion_tokens", result.ids.size()},
                   {"cached_tokens", result.reused_tokens}};
  json["prompt_ids"] = request.prompt_ids;
  json["ids"] = result.ids;
  json["end_id"] = result.end_id >= 0 ? Json(result.end_id) : nullptr;
  json["seed"] = request.sampling.seed;
  json["prefill_seconds"] = result.prefill_seconds;
  json["decode_seconds"] = result.decode_seconds;
  json["decode_tokens_per_second"] = result.decode_rate();
  session.out << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

// Shows reasoning (if wanted) and content as they come, and the calls behind them.
class Shown {
 public:
  Shown(const RunSession& session, const AnswerReaderOptions& reading)
      : session_(session), reader_(reading) {}

  void Push(std::string_view text) {
    if (session_.options.raw) {
      Take({AnswerDelta::Kind::kContent, -1, std::string(text)});
    } else {
      for (const AnswerDelta& delta : reader_.Push(text)) Take(delta);
    }
  }
  void Finish() {
    for (const AnswerDelta& delta : reader_.Finish()) Take(delta);
    SetDim(false);
    ShowCalls();
  }
  // For what follows to begin on a line of its own, where the answer broke off.
  void BreakOff() {
    Finish();
    if (is_in_line_) session_.out << "\n";
    session_.out << std::flush;
  }
  const Answer& all() const { return all_; }
  bool was_cut() const { return reader_.was_cut(); }

 private:
  bool is_text() const { return !session_.options.json && !session_.options.ids; }

  void Take(const AnswerDelta& delta) {
    all_.Apply(delta);
    const bool is_reasoning = delta.kind == AnswerDelta::Kind::kReasoning;
    const bool is_content = delta.kind == AnswerDelta::Kind::kContent;
    const bool is_shown = is_content || (is_reasoning && session_.options.show_thinking);
    if (!is_text() || !is_shown) return;
    SetDim(is_reasoning);
    session_.out << delta.text << std::flush;
    is_in_line_ = true;
  }
  void ShowCalls() {
    if (!is_text()) return;
    for (const ToolCall& call : all_.tool_calls) {
      if (is_in_line_) session_.out << "\n";
      session_.out << call.name << "(" << call.arguments_json << ")";
      is_in_line_ = true;
    }
  }
  void SetDim(bool dim) {
    if (dim == is_dim_) return;
    is_dim_ = dim;
    if (session_.has_terminal) session_.out << (dim ? kDim : kPlain);
    if (!dim) {
      session_.out << "\n";
      is_in_line_ = false;
    }
  }

  const RunSession& session_;
  AnswerReader reader_;
  Answer all_;
  bool is_dim_ = false;
  bool is_in_line_ = false;
};

// What else there is to know about the answer.
void PrintNotes(const RunSession& session, const GenerateResult& result, const Shown& shown) {
  const Options& options = session.options;
  const Answer& answer = shown.all();
  if (!result.notice.empty()) session.notes << "note: " << result.notice << "\n";
  if (shown.was_cut()) {
    session.notes << "note: the answer ended inside a tool call, whose arguments are not whole\n";
  }
  const bool shows_all = options.show_thinking || options.json || options.ids;
  const bool is_thought = answer.content.empty() && answer.tool_calls.empty();
  if (!shows_all && is_thought && !answer.reasoning.empty()) {
    session.notes << "note: the answer has nothing but thoughts, which --show-thinking shows\n";
  }
}

}  // namespace

void CheckRunOptions(const Options& options) {
  if (options.json && options.ids) {
    throw Error(ErrorCode::kUsage, "--ids is of no use with --json, which holds the ids already");
  }
  for (const char* name : {"system", "thinking", "reasoning-effort", "show-thinking", "tools"}) {
    if (options.raw && options.is_typed(name)) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("--{} is of no use with --raw, which applies no chat template", name));
    }
  }
  if (!options.raw && !options.tools.empty()) ReadToolsFile(options.tools);
}

int RunOnce(const RunSession& session) {
  const Options& options = session.options;
  CheckRunOptions(options);
  const Prompt prompt = MakePrompt(session);
  GenerateRequest request = RequestFrom(options, session.engine);
  request.prompt_ids = prompt.ids;
  request.end_ids = session.engine.config().eos_ids;
  if (!options.raw) request.end_ids = ChatEndIds(request.end_ids, session.engine.tokenizer());

  InterruptGuard guard;
  request.cancel = guard.flag();
  Shown shown(session, prompt.reading);
  request.on_text = [&](std::string_view text) { shown.Push(text); };
  const std::unique_ptr<Sequence> sequence = session.engine.NewSequence();
  GenerateResult result;
  try {
    result = Generate(*sequence, session.engine.tokenizer(), request);
  } catch (...) {
    shown.BreakOff();
    throw;
  }
  shown.Finish();

  if (options.json) {
    PrintJson(session, request, result, shown.all());
  } else if (options.ids) {
    session.out << fmt::format("{}\n{}\n", fmt::join(request.prompt_ids, " "),
                               fmt::join(result.ids, " "));
  } else {
    session.out << "\n";
  }
  session.out << std::flush;
  PrintNotes(session, result, shown);
  if (options.stats) {
    session.notes << fmt::format("[{}; seed {}]\n", StatsText(result), request.sampling.seed);
  }
  if (result.finish_reason != FinishReason::kCancelled) return 0;
  session.notes << fmt::format("hillstar: stopped by Ctrl-C after {}; the answer is unfinished\n",
                               CountText(int64_t(result.ids.size()), "token"));
  return kInterruptedExitCode;
}

}  // namespace hillstar
