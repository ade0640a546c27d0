// Parses the input as a chat template and renders a conversation with it: no template may crash,
// hang or make a control token out of a message's text.
#include <cstdint>
#include <string>
#include <string_view>

#include "core/check.h"
#include "hillstar/error.h"
#include "tokenizer/conversation.h"
#include "tokenizer/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hillstar;
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  try {
    const jinja::Template parsed(source);
    jinja::Runtime runtime;
    const std::vector<ChatMessage> messages = {
        {"user", "\x01\x01 \x01", {}, {}},
        {"assistant", "\x01", "\x01", {{"\x01", "{\"\\u0001\":[1,2.5,null,true,\"\\u0001\"]}"}}}};
    const jinja::Template::Variables variables = {
        {"messages", MessagesValue(messages, &runtime.heap)},
        {"tools", ToolsValue({"{\"name\":\"\\u0001\"}"}, &runtime.heap)},
        {"add_generation_prompt", true}};
    const MarkedText text = parsed.Render(variables, &runtime);
    // Byte 1 stands for a message's text, so wherever it comes out it has to be marked.
    if (source.find('\x01') != std::string_view::npos ||
        source.find('\\') != std::string_view::npos) {
      return 0;
    }
    for (size_t i = 0; i < text.size(); ++i) CHECK(text.text()[i] != '\x01' || text.IsMarked(i));
  } catch (const Error&) {
    // What is wrong with a template has to end here and nowhere else.
  }
  return 0;
}
