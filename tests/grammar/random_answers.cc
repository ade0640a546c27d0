// Makes answers by drawing tokens from the masks of grammars of JSON schemas, and says which texts
// such grammars take. Reads lines of JSON from stdin and writes one for each:
//   {"schema": TEXT, "is_tool": BOOL, "seed": N, "count": N, "texts": [TEXT...]}
//   {"answers": [{"text": TEXT, "ends": BOOL}...], "takes": [BOOL...]} or {"error": SENTENCE}
// Of a tool the answers are the arguments of calls, as the reader of answers reads them, and
// `texts` are not looked at.
//
//   random_answers models/pocket/tokenizer.json
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "hillstar/error.h"
#include "tokenizer/answer_reader.h"

namespace hillstar {
namespace {

using Json = nlohmann::json;

// An answer draws so many tokens and then takes the shortest way to its end.
constexpr int kFreeTokens = 120;
constexpr int kMaxEndBytes = 20000;

enum class Bias { kNone, kLong, kShort };

class Walker {
 public:
  Walker(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie,
         const Tokenizer& tokenizer)
      : grammar_(std::move(grammar)), trie_(std::move(trie)), tokenizer_(tokenizer) {}

  Json Answer(uint64_t seed, Bias bias) {
    std::mt19937_64 random(seed);
    GrammarMatcher matcher(grammar_, trie_);
    std::string text;
    std::vector<uint32_t> mask(trie_->num_words());
    for (int step = 0; step < kFreeTokens && !matcher.is_ended(); ++step) {
      if (matcher.can_end() && random() % 4 == 0) break;
      matcher.Mask(mask);
      const int32_t id = Draw(mask, bias, &random);
      if (id < 0 || !matcher.Accept(id)) return {{"text", Shown(text)}, {"ends", false}};
      text += tokenizer_.TokenBytes(id);
    }
    const bool ends = EndShortly(&matcher, &text);
    return {{"text", Shown(text)}, {"ends", ends}};
  }

 private:
  // What JSON can say of an answer that ends within a character.
  static std::string Shown(const std::string& text) {
    return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  int32_t Draw(const std::vector<uint32_t>& mask, Bias bias, std::mt19937_64* random) const {
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < trie_->vocab_size(); ++id) {
      if ((mask[size_t(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) return -1;
    for (int attempt = 0;; ++attempt) {
      const int32_t id = allowed[(*random)() % allowed.size()];
      const bool closes = trie_->bytes(id).find_first_of("\"]}") != std::string::npos;
      const bool is_wanted = bias == Bias::kNone || closes == (bias == Bias::kShort);
      if (is_wanted || attempt == 8) return id;
    }
  }

  // Goes on byte by byte, each time nearer to the end.
  bool EndShortly(GrammarMatcher* matcher, std::string* text) const {
    std::vector<uint32_t> mask(trie_->num_words());
    for (int step = 0; !matcher->can_end() && step < kMaxEndBytes; ++step) {
      const uint32_t left = matcher->min_bytes_to_end();
      matcher->Mask(mask);
      bool is_nearer = false;
      for (int32_t id = 0; id < trie_->vocab_size() && !is_nearer; ++id) {
        const bool is_allowed = (mask[size_t(id) / 32] >> (id % 32) & 1) != 0;
        if (!is_allowed || trie_->bytes(id).size() > 1) continue;  // a byte, or a tag
        GrammarMatcher copy = *matcher;
        if (!copy.Accept(id)) return false;
        if (copy.min_bytes_to_end() >= left) continue;
        is_nearer = true;
        *matcher = std::move(copy);
        *text += tokenizer_.TokenBytes(id);
      }
      if (!is_nearer) return false;
    }
    return matcher->can_end();
  }

  std::shared_ptr<const Grammar> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  const Tokenizer& tokenizer_;
};

// The arguments of the one call of an answer.
std::string ArgumentsOf(const std::string& text, const std::string& schema) {
  AnswerReaderOptions options;
  options.reads_calls = true;
  options.tools = {{"f", schema}};
  const hillstar::Answer answer = ReadAnswer(text, options);
  const bool is_call = answer.content.empty() && answer.tool_calls.size() == 1;
  return is_call ? answer.tool_calls[0].arguments_json : "no call: " + text;
}

Json Reply(const Json& request, const Tokenizer& tokenizer,
           const std::shared_ptr<const TokenTrie>& trie) {
  const bool is_tool = request.value("is_tool", false);
  const std::string schema = request["schema"];
  std::shared_ptr<const Grammar> grammar;
  try {
    const std::vector<ToolSpec> tools = {{"f", schema}};
    grammar = is_tool ? GrammarOfToolCalls(tools, ToolCallRule::kRequired, false, tokenizer)
                      : GrammarOfJsonSchema(schema);
  } catch (const Error& error) {
    return {{"error", error.what()}};
  }
  Json reply = {{"answers", Json::array()}, {"takes", Json::array()}};
  Walker walker(grammar, trie, tokenizer);
  for (int i = 0; i < request["count"]; ++i) {
    const uint64_t seed = request["seed"].get<uint64_t>() * 1000 + uint64_t(i);
    Json answer = walker.Answer(seed, Bias(i % 3));
    if (is_tool && answer["ends"]) answer["text"] = ArgumentsOf(answer["text"], schema);
    reply["answers"].push_back(std::move(answer));
  }
  for (const Json& text : request["texts"]) {
    GrammarMatcher matcher(grammar, trie);
    reply["takes"].push_back(matcher.AcceptBytes(text.get<std::string>()) && matcher.can_end());
  }
  return reply;
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: random_answers TOKENIZER.json\n";
    return 2;
  }
  std::ifstream file(argv[1]);
  std::stringstream text;
  text << file.rdbuf();
  const auto tokenizer = Tokenizer::FromJson(text.str());
  const auto trie = TokenTrie::Of(*tokenizer);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Reply(Json::parse(line), *tokenizer, trie).dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace hillstar

int main(int argc, char** argv) { return hillstar::Main(argc, argv); }
