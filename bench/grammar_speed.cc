// What grammars cost: building one, and the mask of each token of an answer that follows it, with
// the built-in tokenizer and with a vocabulary of the size of GLM-5.2's.
//
//   grammar_speed models/pocket/tokenizer.json
#include <fmt/format.h>

#include <time.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

// Time that this thread computes, so that other programs do not count.
double Microseconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * double(time.tv_sec) + 1e-3 * double(time.tv_nsec);
}
double MicrosecondsSince(double start) { return Microseconds() - start; }

struct Case {
  const char* name;
  const char* schema;
  const char* answer;
};
const Case kCases[] = {
    {"flat object",
     R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,
      "maximum":150},"email":{"type":"string"},"is_member":{"type":"boolean"}},
      "required":["name","age","email","is_member"],"additionalProperties":false})",
     R"({"name": "Ada Lovelace of London", "age": 36, "email": "ada@example.org", )"
     R"("is_member": true})"},
    {"nested lists",
     R"({"type":"object","properties":{"title":{"type":"string","maxLength":80},"steps":{"type":
      "array","minItems":1,"items":{"type":"object","properties":{"explanation":{"type":"string"},
      "output":{"type":"string"},"cost":{"type":"number"}},"required":["explanation","output"]}},
      "tags":{"type":"array","items":{"enum":["easy","medium","hard","other"]},"maxItems":5}},
      "required":["title","steps"]})",
     R"({"title": "How to solve the equation", "steps": [{"explanation": "Subtract 7 from both )"
     R"(sides of it, since \"7\" is in the way.", "output": "8x = -30", "cost": 1.25},)"
     R"({"explanation": "Divide by 8", "output": "x = -3.75"}], "tags": ["easy", "other"]})"},
    {"optional members",
     R"({"type":"object","properties":{"id":{"type":"string","pattern":"^[A-Z]{2}[0-9]{4}$"},
      "city":{"type":["string","null"]},"zip":{"type":"string"},"street":{"type":"string"},
      "number":{"anyOf":[{"type":"integer"},{"type":"string"}]},"country":{"enum":["DE","FR","US"]},
      "since":{"type":"string","format":"date"},"notes":{"type":"string"},"rating":{"type":"number",
      "minimum":0,"maximum":5}},"additionalProperties":{"type":"string"}})",
     R"({"id": "AB1234", "city": null, "street": "Rue de la Paix à côté du 東京 café",)"
     R"("number": 12, "country": "FR", "since": "2024-02-29", "rating": 4.5, "more": "text"})"},
    {"any object", nullptr,
     R"({"weather": {"city": "Paris", "days": [1, 2.5, {"rain": false}], "text": "It will be )"
     R"(cloudy with some sun in the afternoon"}, "ok": true})"},
};

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Words, digits, punctuation, blanks, bytes and characters of several bytes, as large vocabularies
// have them: most begin with a blank or not, some mix quotes and brackets.
std::vector<std::string> SyntheticVocabulary(size_t size) {
  std::mt19937 random(7);
  std::set<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.insert(std::string(1, char(byte)));
  for (int i = 0; i < 1000; ++i) tokens.insert(std::to_string(i));
  const std::string marks = "\"'{}[]():;,.<>/\\-_=+*&^%$#@!?|~`\n\t ";
  const auto word = [&] {
    static constexpr std::string_view kSyllables[] = {"ra", "ton", "e",   "in", "st", "al", "or",
                                                      "de", "qu",  "ish", "un", "ka", "mo", "per",
                                                      "ti", "a",   "on",  "ly", "ex", "no"};
    std::string text;
    for (size_t n = 1 + random() % 5; n > 0; --n) text += kSyllables[random() % 20];
    return text;
  };
  while (tokens.size() < size) {
    std::string token;
    switch (random() % 20) {
      case 0:
      case 1:
        for (size_t n = 2 + random() % 3; n > 0; --n) token += marks[random() % marks.size()];
        break;
      case 2: token = word() + marks[random() % marks.size()]; break;
      case 3: token = std::string(random() % 30, ' ') + marks[random() % marks.size()]; break;
      case 4:
      case 5:
      case 6:
      case 7:
        for (size_t n = 1 + random() % 4; n > 0; --n)
          AppendUtf8(0x4E00 + uint32_t(random() % 8000), &token);
        break;
      case 8:
        AppendUtf8(0x400 + uint32_t(random() % 256), &token);
        token += token;
        break;
      case 9:
        token = "\xE4\xB8";
        token[1] = char(0x80 + random() % 64);
        token += word();
        break;
      default:
        token = word();
        if (random() % 2 == 0) token.insert(token.begin(), ' ');
    }
    if (random() % 4 == 0 && !token.empty() && token[0] >= 'a' && token[0] <= 'z')
      token[0] = char(token[0] - 32);
    tokens.insert(token);
  }
  return {tokens.begin(), tokens.end()};
}

// Cuts a text into the longest tokens.
std::vector<int32_t> LongestTokens(const TokenTrie& trie, std::string_view text) {
  const TokenTrie::Tree& tree = trie.all();
  std::vector<int32_t> ids;
  while (!text.empty()) {
    uint32_t at = 0;
    int32_t best = -1;
    for (size_t i = 0; i < text.size(); ++i) {
      uint32_t child = at + 1;
      while (child < tree.nodes[at].subtree_end && tree.nodes[child].byte != uint8_t(text[i])) {
        child = tree.nodes[child].subtree_end;
      }
      if (child >= tree.nodes[at].subtree_end) break;
      at = child;
      if (tree.nodes[at].token >= 0) best = tree.tokens[size_t(tree.nodes[at].token)];
    }
    ids.push_back(best);
    text.remove_prefix(trie.bytes(best).size());
  }
  return ids;
}

struct Times {
  std::vector<double> masks, accepts;
  void Add(const Times& more) {
    masks.insert(masks.end(), more.masks.begin(), more.masks.end());
    accepts.insert(accepts.end(), more.accepts.begin(), more.accepts.end());
  }
};

double Quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[size_t(share * double(values.size() - 1))];
}

Times Follow(const std::shared_ptr<const Grammar>& grammar,
             const std::shared_ptr<const TokenTrie>& trie, std::string_view answer) {
  Times times;
  GrammarMatcher matcher(grammar, trie);
  std::vector<uint32_t> mask(trie->num_words());
  for (const int32_t id : LongestTokens(*trie, answer)) {
    auto start = Microseconds();
    matcher.Mask(mask);
    times.masks.push_back(MicrosecondsSince(start));
    start = Microseconds();
    if (!matcher.Accept(id)) {
      fmt::print("refused {} in {}\n", trie->bytes(id), answer);
      return times;
    }
    times.accepts.push_back(MicrosecondsSince(start));
  }
  if (!matcher.can_end()) fmt::print("not at an end: {}\n", answer);
  return times;
}

std::shared_ptr<const Grammar> GrammarOf(const Case& one) {
  return one.schema != nullptr ? GrammarOfJsonSchema(one.schema) : GrammarOfJsonObject();
}

void PrintRow(const char* name, const char* what, double build_us, const Times& times) {
  fmt::print("{:<20}{:<8}{:>9.0f}{:>7}{:>9.1f}{:>9.1f}{:>9.1f}{:>9.1f}\n", name, what, build_us,
             times.masks.size(), Quantile(times.masks, 0.5), Quantile(times.masks, 0.99),
             Quantile(times.masks, 1), Quantile(times.accepts, 0.5));
}

void Measure(const std::shared_ptr<const TokenTrie>& trie) {
  fmt::print("{:<20}{:<8}{:>9}{:>7}{:>9}{:>9}{:>9}{:>9}\n", "grammar", "", "build us", "masks",
             "median", "99 %", "worst", "accept");
  Times all_new, all_known;
  for (const Case& one : kCases) {
    const auto start = Microseconds();
    const auto grammar = GrammarOf(one);
    const double build_us = MicrosecondsSince(start);
    // The first answer finds the masks that the second one knows.
    const Times first = Follow(grammar, trie, one.answer);
    const Times second = Follow(grammar, trie, one.answer);
    PrintRow(one.name, "new", build_us, first);
    PrintRow("", "known", 0, second);
    all_new.Add(first);
    all_known.Add(second);
  }
  PrintRow("all", "new", 0, all_new);
  PrintRow("", "known", 0, all_known);
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: grammar_speed TOKENIZER.json\n");
    return 2;
  }
  const auto tokenizer = Tokenizer::FromJson(ReadFile(argv[1]));
  auto start = Microseconds();
  const auto trie = TokenTrie::Of(*tokenizer);
  fmt::print("{} tokens, tree of {} nodes built in {:.0f} ms; us per mask:\n", trie->vocab_size(),
             trie->all().nodes.size(), MicrosecondsSince(start) / 1000);
  Measure(trie);
  const std::vector<std::string> tokens = SyntheticVocabulary(155000);
  start = Microseconds();
  const auto large = TokenTrie::OfTokens(tokens);
  fmt::print(
      "\n{} tokens made up, tree of {} nodes ({} without plain tokens) built in {:.0f} ms:\n",
      large->vocab_size(), large->all().nodes.size(), large->rest().nodes.size(),
      MicrosecondsSince(start) / 1000);
  Measure(large);
  return 0;
}

}  // namespace
}  // namespace hillstar

int main(int argc, char** argv) { return hillstar::Main(argc, argv); }
