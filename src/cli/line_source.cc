#include "cli/line_source.h"

#include <histedit.h>

#include <clocale>
#include <cstdio>

#include "cli/text_file.h"
#include "core/check.h"
#include "hillstar/error.h"

namespace hillstar {
namespace {

constexpr int kHistoryLines = 1000;

class StreamSource : public LineSource {
 public:
  explicit StreamSource(std::istream& stream) : stream_(stream) {}
  Input Next(const std::string&) override {
    std::string line;
    if (!std::getline(stream_, line)) {
      if (CannotBeRead(stream_)) throw Error(ErrorCode::kIo, "standard input cannot be read");
      return {Input::Kind::kEnd, ""};
    }
    if (line.ends_with('\r')) line.pop_back();
    return {Input::Kind::kText, line};
  }

 private:
  std::istream& stream_;
};

// libedit edits characters, not bytes, where the locale says that text is UTF-8; what a model reads
// is, whatever the user's locale.
EditLine* NewEditor() {
  std::setlocale(LC_CTYPE, "C.UTF-8");
  return el_init("hillstar", stdin, stdout, stderr);
}

class TerminalSource : public LineSource {
 public:
  explicit TerminalSource(const std::filesystem::path& history_file)
      : history_file_(history_file), editor_(NewEditor()), history_(history_init()) {
    CHECK(editor_ != nullptr && history_ != nullptr);
    el_set(editor_, EL_SIGNAL, 1);  // a signal that ends the program leaves the terminal as it was
    el_set(editor_, EL_CLIENTDATA, this);
    el_set(editor_, EL_PROMPT, &TerminalSource::Prompt);
    el_set(editor_, EL_EDITOR, "emacs");
    // While a line is edited, Ctrl-C is a key like others and drops the line.
    el_set(editor_, EL_SETTY, "-d", "-isig", nullptr);
    el_set(editor_, EL_ADDFN, "drop-line", "Drop the line", &TerminalSource::DropLine);
    el_set(editor_, EL_BIND, "^C", "drop-line", nullptr);
    el_set(editor_, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(editor_, EL_HIST, history, history_);
    HistEvent event;
    history(history_, &event, H_SETSIZE, kHistoryLines);
    history(history_, &event, H_SETUNIQUE, 1);
    if (!history_file_.empty()) history(history_, &event, H_LOAD, history_file_.c_str());
  }
  ~TerminalSource() override {
    history_end(history_);
    el_end(editor_);
  }
  TerminalSource(const TerminalSource&) = delete;
  TerminalSource& operator=(const TerminalSource&) = delete;

  Input Next(const std::string& prompt) override {
    prompt_ = prompt;
    is_dropped_ = false;
    int length = 0;
    const char* text = el_gets(editor_, &length);
    if (text == nullptr || length <= 0) {
      std::fputs(is_dropped_ ? "^C\n" : "\n", stdout);  // the cursor stands behind what was typed
      std::fflush(stdout);
      return {is_dropped_ ? Input::Kind::kDropped : Input::Kind::kEnd, ""};
    }
    std::string line(text, size_t(length));
    if (line.find_first_not_of(" \t\r\n") != std::string::npos) {
      HistEvent event;
      history(history_, &event, H_ENTER, text);
      if (!history_file_.empty()) history(history_, &event, H_SAVE, history_file_.c_str());
    }
    while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
    return {Input::Kind::kText, line};
  }

 private:
  static TerminalSource& Self(EditLine* editor) {
    void* self = nullptr;
    el_get(editor, EL_CLIENTDATA, &self);
    return *static_cast<TerminalSource*>(self);
  }
  static char* Prompt(EditLine* editor) { return Self(editor).prompt_.data(); }
  static unsigned char DropLine(EditLine* editor, int) {
    Self(editor).is_dropped_ = true;
    return CC_EOF;  // ends el_gets without a line
  }

  std::filesystem::path history_file_;
  std::string prompt_;
  bool is_dropped_ = false;  // the line of the last el_gets, by Ctrl-C
  EditLine* editor_;
  History* history_;
};

}  // namespace

std::unique_ptr<LineSource> StreamLines(std::istream& stream) {
  return std::make_unique<StreamSource>(stream);
}

std::unique_ptr<LineSource> TerminalLines(const std::filesystem::path& history_file) {
  return std::make_unique<TerminalSource>(history_file);
}

Input NextMessage(LineSource& lines, const std::string& prompt) {
  Input message = lines.Next(prompt);
  while (message.text.ends_with('\\')) {
    message.text.pop_back();
    if (message.text.ends_with('\\')) break;
    const Input more = lines.Next("... ");
    if (more.kind != Input::Kind::kText) return {Input::Kind::kDropped, ""};
    message.text += "\n" + more.text;
  }
  return message;
}

}  // namespace hillstar
