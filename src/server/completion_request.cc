#include "server/completion_request.h"

#include <fmt/format.h>

#include "engine/generate.h"
#include "model/config.h"
#include "server/api_error.h"
#include "server/request_parts.h"

namespace hillstar {
namespace {

constexpr size_t kMaxPrompts = 128;

bool IsId(const OrderedJson& value) { return value.is_number_integer(); }

std::vector<int32_t> ReadIds(const OrderedJson& array, const std::string& path,
                             const Engine& engine) {
  std::vector<int32_t> ids;
  const int64_t vocab = engine.config().vocab_size;
  for (size_t i = 0; i < array.size(); ++i) {
    const OrderedJson& id = array[i];
    if (!IsId(id) || id < 0 || id >= vocab) {
      throw BadRequest(fmt::format("{}[{}] is {}; a token id is a whole number from 0 to {}", path,
                                   i, ShownJson(id), vocab - 1),
                       path);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

// Texts and ids of the prompts, as they will be computed.
class PromptReader {
 public:
  PromptReader(const Engine& engine, CompletionRequest* request)
      : engine_(engine), request_(request) {}

  void Read(const OrderedJson& prompt, const std::string& path) {
    if (prompt.is_string()) {
      AddText(prompt.get<std::string>(), path);
    } else if (!prompt.is_array() || prompt.empty()) {
      throw BadRequest(path +
                           " has to be a text, an array of texts, of token ids or of arrays of "
                           "token ids, and not empty",
                       path);
    } else if (IsId(prompt[0])) {
      Add(ReadIds(prompt, path, engine_), path);
    } else {
      ReadEach(prompt, path);
    }
  }

 private:
  void ReadEach(const OrderedJson& prompts, const std::string& path) {
    if (prompts.size() > kMaxPrompts) {
      throw BadRequest(
          fmt::format("{} has {} prompts; {} are the most", path, prompts.size(), kMaxPrompts),
          path);
    }
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::string item = ItemPath(path, i);
      if (prompts[i].is_string()) {
        AddText(prompts[i].get<std::string>(), item);
      } else if (prompts[i].is_array()) {
        Add(ReadIds(prompts[i], item, engine_), item);
      } else {
        throw BadRequest(fmt::format("{} is {}; it has to be a text or an array of token ids", item,
                                     JsonKindName(prompts[i])),
                         item);
      }
    }
  }
  void AddText(const std::string& text, const std::string& path) {
    if (text.empty()) throw BadRequest(path + " is empty", path);
    CheckTextRoom(text, engine_, path);
    Add(RawPromptIds(engine_.tokenizer(), text), path);
  }
  void Add(std::vector<int32_t> ids, const std::string& path) {
    request_->answer.prompts.push_back({std::move(ids), false});
    CheckRoom(request_->answer.prompts.back(), engine_, path);
  }

  const Engine& engine_;
  CompletionRequest* request_;
};

}  // namespace

CompletionRequest ReadCompletion(const OrderedJson& body, const Engine& engine,
                                 const AnswerDefaults& defaults) {
  JsonFields fields(body, "");
  CompletionRequest request;
  AnswerRequest& answer = request.answer;
  PromptReader(engine, &request).Read(fields.Required("prompt"), "prompt");
  ReadSampling(fields, defaults, &answer.sampling);
  constexpr int64_t kDefaultTokens = 16;  // OpenAI's
  answer.max_tokens = fields.Integer("max_tokens", 1, INT64_MAX).value_or(kDefaultTokens);
  answer.stops = ReadStops(fields, "stop");
  answer.answers_each = fields.Integer("n", 1, kMaxAnswers).value_or(1);
  answer.biases = ReadBiases(fields, engine);
  constexpr int64_t kMaxLogprobs = 5;  // OpenAI's
  answer.num_top_logprobs = fields.Integer("logprobs", 0, kMaxLogprobs).value_or(-1);
  if (fields.Flag("echo").value_or(false)) {
    if (answer.num_top_logprobs >= 0) {
      fields.Fail("echo", "cannot be had with logprobs: those of a prompt are not computed");
    }
    for (const Prompt& prompt : answer.prompts) {
      request.echoes.push_back(engine.tokenizer().Decode(prompt.ids, /*skip_special=*/true));
    }
  }
  if (const auto grammar = fields.Text("grammar")) {
    answer.grammar =
        MakeGrammar("grammar", [&] { return GrammarOfGbnf(*grammar, engine.tokenizer()); });
  }
  ReadStreaming(fields, &request.streams, &request.includes_usage);
  fields.IgnoreTexts({"model", "user"});
  fields.Integer("best_of", 1, 1);
  fields.Refuse("suffix", "this model fills no gaps");
  fields.RefuseOthers();
  return request;
}

}  // namespace hillstar
