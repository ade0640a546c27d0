#include "cli/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/conversation.h"
#include "cli/request.h"
#include "cli/saved_chat.h"
#include "cli/terminal.h"
#include "cli/text_file.h"
#include "formats/file_io.h"
#include "formats/json_scan.h"

namespace hillstar {
namespace {

constexpr size_t kMaxSavedBytes = size_t{1} << 30;

constexpr const char* kSlashHelp =
    "/help              this list\n"
    "/clear             forget the conversation, the saved one too, but keep the system message\n"
    "/system TEXT       set the system message and forget the conversation; without TEXT remove "
    "it\n"
    "/think on|off      ask the model to reason before it answers, or not\n"
    "/think show|hide   show the reasoning, or not\n"
    "/stats             tokens and speed of the last answer\n"
    "/save FILE         write the conversation as JSON\n"
    "/quit              end (or Ctrl-D)\n"
    "A backslash at the end of a line continues the message on the next line; to end a message in\n"
    "a backslash, type two. Ctrl-C stops an answer or drops what is typed; Ctrl-D in a continued\n"
    "message drops it.\n";

class ChatLoop {
 public:
  explicit ChatLoop(const ChatSession& session)
      : session_(session),
        conversation_(session.engine, RequestFrom(session.options, session.engine),
                      ChatOptionsFrom(session.options, session.is_built_in),
                      // Rows from a file may be another program's.
                      {.shares_prefixes = session.saved == nullptr && !session.import}),
        shows_thinking_(session.options.show_thinking) {}

  void PrintBanner() {
    const Engine& engine = session_.engine;
    session_.notes << fmt::format(
        "{}: weights {}, KV {}, context {}, {}; thinking {}. /help lists commands, "
        "Ctrl-D ends.\n",
        session_.is_built_in ? "built-in model" : session_.options.model, engine.weight_summary(),
        engine.kv_format(), CountText(engine.context_tokens(), "token"), DeviceText(engine),
        conversation_.thinking() ? "on" : "off");
  }

  // Brings a saved or an imported conversation back.
  void Begin() {
    if (session_.saved) Tell(session_.saved->Restore(conversation_));
    if (session_.import) {
      if (!conversation_.messages().empty() && session_.saved) {
        throw Error(ErrorCode::kUsage,
                    "--import-session needs a --session that has no conversation yet");
      }
      Tell(session_.import(conversation_));
      Save();
    }
    if (!session_.options.system.empty()) conversation_.SetSystem(session_.options.system);
  }

  void Loop() {
    while (!ends_) {
      const Input input = NextMessage(session_.lines, session_.has_terminal ? "> " : "");
      if (input.kind == Input::Kind::kEnd) break;
      if (input.kind == Input::Kind::kDropped) TellDropped();
      if (input.text.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (input.text.front() == '/') {
        Obey(input.text);
      } else {
        Answer(input.text);
      }
    }
  }

  bool failed() const { return failed_; }

 private:
  void Tell(const std::vector<std::string>& notes) {
    for (const std::string& note : notes) session_.notes << "note: " << note << "\n";
  }

  // What was answered stays on the screen even where it cannot be saved; the next answer tries
  // again.
  void Save() {
    if (!session_.saved) return;
    try {
      Tell(session_.saved->Save(conversation_));
    } catch (const Error& error) {
      session_.notes << "hillstar: the conversation is not saved: " << error.what() << "\n";
      failed_ = true;
    }
  }

  // Forgets the conversation, on the screen's word as on the drive.
  void Forget() {
    conversation_.Clear();
    if (!session_.saved) return;
    try {
      session_.saved->SaveAnew(conversation_);
    } catch (const Error& error) {
      session_.notes << "hillstar: the saved conversation is not forgotten: " << error.what()
                     << "\n";
      failed_ = true;
    }
  }

  // A person sees the prompt again; of a script the input has ended.
  void TellDropped() {
    if (session_.has_terminal) return;
    session_.notes << "hillstar: the input ends in a backslash, within a message, which is not "
                      "sent\n";
    failed_ = true;
  }

  void Answer(const std::string& message) {
    InterruptGuard guard;
    bool is_dim = false, is_in_line = false, has_content = false, has_hidden = false;
    const auto set_dim = [&](bool dim) {
      if (dim == is_dim) return;
      is_dim = dim;
      if (session_.has_terminal) session_.out << (dim ? kDim : kPlain);
      if (dim) return;
      session_.out << "\n";
      is_in_line = false;
    };
    const auto on_reasoning = [&](std::string_view piece) {
      has_hidden = has_hidden || !shows_thinking_;
      if (!shows_thinking_) return;
      set_dim(true);
      session_.out << piece << std::flush;
    };
    const auto on_content = [&](std::string_view piece) {
      set_dim(false);
      session_.out << piece << std::flush;
      is_in_line = true;
      has_content = true;
    };
    try {
      const GenerateResult result =
          conversation_.Ask(message, on_reasoning, on_content, guard.flag());
      set_dim(false);
      session_.out << "\n" << std::flush;
      stats_ = StatsText(result);
      if (!result.notice.empty()) session_.notes << "note: " << result.notice << "\n";
      if (has_hidden && !has_content) {
        session_.notes
            << "note: the answer has nothing but thoughts, which are hidden (/think show)\n";
      }
      if (result.finish_reason == FinishReason::kCancelled) session_.notes << "(stopped)\n";
      if (session_.options.stats) session_.notes << "[" << stats_ << "]\n";
      Save();
    } catch (const Error& error) {
      set_dim(false);
      // The error begins on a line of its own where the answer broke off.
      if (is_in_line) session_.out << "\n";
      session_.out << std::flush;
      session_.notes << "hillstar: " << error.what() << "\n";
      failed_ = true;
    }
  }

  void Obey(const std::string& line) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, space);
    const size_t begin = std::min(line.find_first_not_of(' ', space), line.size());
    const std::string rest = line.substr(begin, line.find_last_not_of(" \n") + 1 - begin);
    if (name == "/help") {
      session_.notes << kSlashHelp;
    } else if (name == "/quit" || name == "/exit") {
      ends_ = true;
    } else if (name == "/clear") {
      Forget();
      session_.notes << (conversation_.messages().empty()
                             ? "the conversation is forgotten\n"
                             : "the conversation is forgotten; the system message stays\n");
    } else if (name == "/system") {
      conversation_.SetSystem(rest);
      Forget();
      session_.notes << (rest.empty() ? "no system message\n" : "system message set\n");
    } else if (name == "/think") {
      Think(rest);
    } else if (name == "/stats") {
      session_.notes << (stats_.empty() ? "no answer yet" : stats_) << "\n";
    } else if (name == "/save") {
      Save(rest);
    } else {
      session_.notes << fmt::format("there is no {}; /help lists what there is\n", name);
    }
  }

  void Think(const std::string& word) {
    if (word == "on" || word == "off") {
      conversation_.SetThinking(word == "on");
    } else if (word == "show" || word == "hide") {
      shows_thinking_ = word == "show";
    } else {
      session_.notes << "/think takes on, off, show or hide\n";
      return;
    }
    session_.notes << fmt::format("thinking is {} and {}\n",
                                  conversation_.thinking() ? "on" : "off",
                                  shows_thinking_ ? "shown" : "hidden");
  }

  void Save(const std::string& file_name) {
    if (file_name.empty()) {
      session_.notes << "/save needs a file's name\n";
      return;
    }
    if (std::error_code none; std::filesystem::exists(file_name, none) && !IsSaved(file_name)) {
      session_.notes << file_name << " exists and is no saved conversation; it is left as it is\n";
      return;
    }
    // Which the new file is at first.
    const std::string partial = file_name + ".partial";
    if (std::error_code none; std::filesystem::exists(partial, none)) {
      session_.notes << partial << " is in the way; it is left as it is\n";
      return;
    }
    try {
      WriteFileAtomically(file_name, conversation_.Json() + "\n");
      session_.notes << "written to " << file_name << "\n";
    } catch (const Error& error) {
      session_.notes << "cannot write to " << file_name << ": " << error.what() << "\n";
    }
  }

  // True if the file holds what /save writes: a list of messages.
  static bool IsSaved(const std::string& file_name) {
    try {
      if (std::error_code none; !std::filesystem::is_regular_file(file_name, none)) return false;
      const nlohmann::json json = ParseJson(ReadTextFile(file_name), file_name, kMaxSavedBytes);
      return json.is_array() && std::ranges::all_of(json, [](const nlohmann::json& message) {
               return message.is_object() && message.contains("role");
             });
    } catch (const Error&) {
      return false;
    }
  }

  const ChatSession& session_;
  Conversation conversation_;
  bool shows_thinking_;
  bool ends_ = false;
  bool failed_ = false;
  std::string stats_;
};

}  // namespace

int Chat(const ChatSession& session) {
  ChatLoop loop(session);
  if (session.has_terminal) loop.PrintBanner();
  loop.Begin();
  loop.Loop();
  // A person has seen the message and gone on; a script has to be told.
  return loop.failed() && !session.has_terminal ? 1 : 0;
}

}  // namespace hillstar
