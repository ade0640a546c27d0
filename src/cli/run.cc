#include "cli/run.h"

#include <fmt/format.h>

#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/request.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "hillstar/error.h"
#include "model/config.h"
#include "ops/backend.h"

namespace hillstar {
namespace {

struct Prompt {
  std::vector<int32_t> ids;
  bool starts_thinking = false;
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
  if (options.raw) return {RawPromptIds(tokenizer, text), false};
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back({"system", options.system, "", {}});
  messages.push_back({"user", text, "", {}});
  const ChatOptions chat = ChatOptionsFrom(options, session.is_built_in);
  const ChatFormat& format = session.engine.chat_format();
  return {format.RenderIds(messages, chat, tokenizer), EndsThinking(format.Render(messages, chat))};
}

void PrintJson(const RunSession& session, const GenerateRequest& request,
               const GenerateResult& result, const ThinkSplitter::Piece& text) {
  nlohmann::ordered_json json;
  json["device"] = session.engine.device().id;
  json["content"] = text.content;
  json["reasoning_content"] = text.reasoning;
  json["finish_reason"] = FinishReasonName(result.finish_reason);
  json["prompt_ids"] = request.prompt_ids;
  json["ids"] = result.ids;
  json["end_id"] = result.end_id >= 0 ? nlohmann::ordered_json(result.end_id) : nullptr;
  json["seed"] = request.sampling.seed;
  json["prefill_seconds"] = result.prefill_seconds;
  json["decode_seconds"] = result.decode_seconds;
  json["decode_tokens_per_second"] = result.decode_rate();
  session.out << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

// Shows reasoning (if wanted) and content as they come.
class Shown {
 public:
  Shown(const RunSession& session, bool starts_thinking)
      : session_(session), splitter_(starts_thinking) {}

  void Push(std::string_view text) {
    if (session_.options.raw) {
      Take({"", std::string(text)});
    } else {
      Take(splitter_.Push(text));
    }
  }
  void Finish() {
    if (!session_.options.raw) Take(splitter_.Finish());
    SetDim(false);
  }
  // For what follows to begin on a line of its own, where the answer broke off.
  void BreakOff() {
    Finish();
    if (is_in_line_) session_.out << "\n";
    session_.out << std::flush;
  }
  const ThinkSplitter::Piece& all() const { return all_; }

 private:
  void Take(const ThinkSplitter::Piece& piece) {
    all_.reasoning += piece.reasoning;
    all_.content += piece.content;
    if (session_.options.json || session_.options.ids) return;
    if (session_.options.show_thinking && !piece.reasoning.empty()) {
      SetDim(true);
      session_.out << piece.reasoning << std::flush;
      is_in_line_ = true;
    }
    if (!piece.content.empty()) {
      SetDim(false);
      session_.out << piece.content << std::flush;
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
  ThinkSplitter splitter_;
  ThinkSplitter::Piece all_;
  bool is_dim_ = false;
  bool is_in_line_ = false;
};

}  // namespace

void CheckRunOptions(const Options& options) {
  if (options.json && options.ids) {
    throw Error(ErrorCode::kUsage, "--ids is of no use with --json, which holds the ids already");
  }
  for (const char* name : {"system", "thinking", "reasoning-effort", "show-thinking"}) {
    if (options.raw && options.is_typed(name)) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("--{} is of no use with --raw, which applies no chat template", name));
    }
  }
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
  Shown shown(session, prompt.starts_thinking);
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
  if (!result.notice.empty()) session.notes << "note: " << result.notice << "\n";
  const bool shows_all = options.show_thinking || options.json || options.ids;
  if (!shows_all && shown.all().content.empty() && !shown.all().reasoning.empty()) {
    session.notes << "note: the answer has nothing but thoughts, which --show-thinking shows\n";
  }
  if (options.stats) {
    session.notes << fmt::format("[{}; seed {}]\n", StatsText(result), request.sampling.seed);
  }
  if (result.finish_reason != FinishReason::kCancelled) return 0;
  session.notes << fmt::format("hillstar: stopped by Ctrl-C after {}; the answer is unfinished\n",
                               CountText(int64_t(result.ids.size()), "token"));
  return kInterruptedExitCode;
}

}  // namespace hillstar
