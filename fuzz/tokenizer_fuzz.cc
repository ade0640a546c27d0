// Feeds a tokenizer.json to the parser, and texts to a small good one: no input may crash, encode
// to an added token where it must not, or come back changed. The first byte chooses: 0 the JSON
// parser, 1 a split pattern, else a text.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/check.h"
#include "hillstar/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace {

using hillstar::AddedTokens;
using hillstar::Tokenizer;
using Json = nlohmann::json;

constexpr int32_t kFirstAdded = 300;

Json SmallTokenizer(const std::string& pattern) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[hillstar::ByteSymbol(static_cast<uint8_t>(byte))] = byte;
  }
  Json merges = Json::array();
  int id = 256;
  for (const auto& [left, right] : {std::pair("a", "b"), std::pair("ab", "ab"), std::pair("Ġ", "Ġ"),
                                    std::pair("<", "|"), std::pair("|", ">")}) {
    vocab[std::string(left) + right] = id++;
    merges.push_back(Json::array({left, right}));
  }
  Json added = Json::array();
  id = kFirstAdded;
  for (const char* content : {"<|a|>", "<|a|><|a|>", "ab", "<|"}) {
    Json token = {{"id", id++}, {"content", content}, {"special", true}, {"normalized", false}};
    if (vocab.contains(content)) token["id"] = vocab[content];
    added.push_back(token);
  }
  return {{"added_tokens", added},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

const Tokenizer& GoodTokenizer() {
  static const auto tokenizer = Tokenizer::FromJson(
      SmallTokenizer(
          R"((?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)")
          .dump());
  return *tokenizer;
}

void CheckText(const Tokenizer& tokenizer, std::string_view text) {
  CHECK(tokenizer.Decode(tokenizer.Encode(text, AddedTokens::kParse), false) == text);
  const auto ids = tokenizer.Encode(text, AddedTokens::kAsText);
  CHECK(tokenizer.Decode(ids, false) == text);
  for (const int32_t id : ids) {
    CHECK(tokenizer.AddedTokenId(tokenizer.TokenBytes(id)) != id);
  }
  const hillstar::TextRange all{0, text.size()};
  CHECK(tokenizer.EncodeMarked(text, std::array{all}) == ids);
}

void CheckStream(std::string_view text) {
  hillstar::Utf8Stream whole, bytes;
  const std::string expected = whole.Push(text) + whole.Finish();
  std::string got;
  for (const char byte : text) got += bytes.Push(std::string_view(&byte, 1));
  CHECK(got + bytes.Finish() == expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 0) {
      CheckText(*Tokenizer::FromJson(text), "abc <|a|> \xFF 12");
    } else if (data[0] == 1) {
      const auto pattern =
          Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
      CheckText(
          *Tokenizer::FromJson(SmallTokenizer(Json::parse(pattern).get<std::string>()).dump()),
          "abab  aab<|a|>'s 12\n x");
    } else {
      CheckText(GoodTokenizer(), text);
      CheckStream(text);
    }
  } catch (const hillstar::Error&) {
    // What is wrong with an input has to end here and nowhere else.
  }
  return 0;
}
