#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "hillstar/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/utf8.h"

namespace hillstar {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

constexpr const char* kGlmPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Bytes have their own value as id; merges follow from 256 on; then the added tokens.
Json MiniTokenizer() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteSymbol(static_cast<uint8_t>(byte))] = byte;
  Json merges = Json::array();
  const std::pair<const char*, const char*> pairs[] = {
      {"a", "b"}, {"ab", "c"}, {"b", "c"}, {"Ġ", "Ġ"}, {"ĠĠ", "ĠĠ"}, {"Ġ", "a"}, {"c", "c"}};
  int id = 256;
  for (const auto& [left, right] : pairs) {
    vocab[std::string(left) + right] = id++;
    merges.push_back(Json::array({left, right}));
  }
  Json added = Json::array();
  for (const char* content : {"<|user|>", "<|user|>x", "<think>", "</think>"}) {
    added.push_back({{"id", id++},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", content[1] == '|'}});
  }
  return {{"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Split"},
               {"pattern", {{"Regex", kGlmPattern}}},
               {"behavior", "Isolated"},
               {"invert", false}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

constexpr int32_t kAb = 256, kAbc = 257, kBc = 258, kTwoSpaces = 259, kFourSpaces = 260,
                  kSpaceA = 261, kUser = 263, kUserX = 264, kThink = 265;

std::shared_ptr<const Tokenizer> Load(const Json& json) { return Tokenizer::FromJson(json.dump()); }

Ids Encode(const Json& json, std::string_view text, AddedTokens added = AddedTokens::kParse) {
  return Load(json)->Encode(text, added);
}

std::shared_ptr<const Tokenizer> LoadDemo() {
  std::ifstream file(std::string(HILLSTAR_DEMO_CHECKPOINT) + "/checkpoint/tokenizer.json");
  std::stringstream text;
  text << file.rdbuf();
  return Tokenizer::FromJson(text.str());
}

void ExpectError(const Json& json, ErrorCode code, const std::string& part) {
  try {
    Load(json);
    ADD_FAILURE() << "no error; expected " << part;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(TokenizerTest, MergesByRankFromTheLeft) {
  EXPECT_EQ(Encode(MiniTokenizer(), "abc"), (Ids{kAbc}));
  EXPECT_EQ(Encode(MiniTokenizer(), "bcab"), (Ids{kBc, kAb}));
  EXPECT_EQ(Encode(MiniTokenizer(), "aab"), (Ids{'a', kAb}));
  EXPECT_EQ(Encode(MiniTokenizer(), "ccc"), (Ids{262, 'c'}));
  EXPECT_EQ(Encode(MiniTokenizer(), ""), Ids{});
}

// Short words are merged by scanning, long ones with a queue: both have to agree.
TEST(TokenizerTest, LongWordsMergeAsShortOnesDo) {
  std::string word;
  Ids expected;
  for (int i = 0; i < 100; ++i) {
    word += "abcbccab";
    for (const int32_t id : {kAbc, kBc, int32_t{'c'}, kAb}) expected.push_back(id);
  }
  // "ab" next to the following "abc" changes nothing: "b" and "a" do not merge.
  EXPECT_EQ(Encode(MiniTokenizer(), word), expected);
}

TEST(TokenizerTest, AcceptsBothSpellingsOfMerges) {
  Json json = MiniTokenizer();
  Json strings = Json::array();
  for (const Json& pair : json["model"]["merges"]) {
    strings.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  }
  const std::string text = "abcab  bc ab cc";
  const Ids expected = Encode(json, text);
  json["model"]["merges"] = strings;
  EXPECT_EQ(Encode(json, text), expected);
}

TEST(TokenizerTest, IgnoreMergesTakesWholeWords) {
  Json json = MiniTokenizer();
  json["model"]["vocab"]["cab"] = 300;
  EXPECT_EQ(Encode(json, "cab"), (Ids{'c', kAb}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Encode(json, "cab"), (Ids{300}));
  EXPECT_EQ(Encode(json, "cabx"), (Ids{'c', kAb, 'x'}));
}

TEST(TokenizerTest, SpaceBeforeAWordGoesWithTheWord) {
  EXPECT_EQ(Encode(MiniTokenizer(), "    a"), (Ids{kTwoSpaces, ' ', kSpaceA}));
  EXPECT_EQ(Encode(MiniTokenizer(), "    "), (Ids{kFourSpaces}));
  EXPECT_EQ(Encode(MiniTokenizer(), "    \n"), (Ids{kFourSpaces, '\n'}));
}

TEST(TokenizerTest, ByteLevelAloneSplitsAsGpt2) {
  Json json = MiniTokenizer();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  json["model"]["vocab"]["12"] = 300;
  json["model"]["vocab"]["1234"] = 301;
  json["model"]["vocab"]["34"] = 302;
  for (const auto& [a, b] : {std::pair("1", "2"), std::pair("3", "4"), std::pair("12", "34")}) {
    json["model"]["merges"].push_back(Json::array({a, b}));
  }
  // GPT-2's pattern takes all digits as one word, GLM's takes three.
  EXPECT_EQ(Encode(json, "1234"), (Ids{301}));
  json["pre_tokenizer"] = MiniTokenizer()["pre_tokenizer"];
  EXPECT_EQ(Encode(json, "1234"), (Ids{300, '3', '4'}));
}

TEST(TokenizerTest, AddedTokensAreFoundFirstFromTheLeftAndLongest) {
  const auto tokenizer = Load(MiniTokenizer());
  EXPECT_EQ(tokenizer->Encode("a<|user|>b", AddedTokens::kParse), (Ids{'a', kUser, 'b'}));
  EXPECT_EQ(tokenizer->Encode("<|user|>x<|user|>y", AddedTokens::kParse),
            (Ids{kUserX, kUser, 'y'}));
  EXPECT_EQ(tokenizer->Encode("<<|user|>", AddedTokens::kParse), (Ids{'<', kUser}));
  EXPECT_EQ(tokenizer->Encode("<|user|", AddedTokens::kParse).size(), 7u);
  EXPECT_EQ(tokenizer->AddedTokenId("<|user|>"), kUser);
  EXPECT_EQ(tokenizer->AddedTokenId("<|user"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(kUser));
  EXPECT_FALSE(tokenizer->IsSpecial(kThink));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_EQ(tokenizer->Decode(Ids{'a', kUser, kThink, 'b'}, true), "a<think>b");
  EXPECT_EQ(tokenizer->Decode(Ids{'a', kUser, kThink, 'b'}, false), "a<|user|><think>b");
  EXPECT_EQ(tokenizer->vocab_size(), 267);
}

TEST(TokenizerTest, NormalizedTokensComeSecond) {
  Json json = MiniTokenizer();
  json["added_tokens"].push_back(
      {{"id", 300}, {"content", "z<|user|>"}, {"special", false}, {"normalized", true}});
  EXPECT_EQ(Encode(json, "z<|user|>"), (Ids{'z', kUser}));
  json["added_tokens"].back()["normalized"] = false;
  EXPECT_EQ(Encode(json, "z<|user|>"), (Ids{300}));
}

// Even where the vocabulary and the merges could spell the token.
TEST(TokenizerTest, AsTextNeverGivesAnAddedToken) {
  Json json = MiniTokenizer();
  json["added_tokens"].push_back({{"id", kAbc}, {"content", "abc"}, {"special", true}});
  for (const bool ignore_merges : {false, true}) {
    json["model"]["ignore_merges"] = ignore_merges;
    EXPECT_EQ(Encode(json, "abc", AddedTokens::kAsText), (Ids{kAb, 'c'}));
    EXPECT_EQ(Encode(json, "abc", AddedTokens::kParse), (Ids{kAbc}));
  }
  for (const int32_t id : Encode(json, "<|user|><think>abc", AddedTokens::kAsText)) {
    EXPECT_TRUE(id != kAbc && id < kUser) << id;
  }
}

TEST(TokenizerTest, MarkedStretchesStayText) {
  const auto tokenizer = Load(MiniTokenizer());
  const std::string text = "<|user|><think><|user|>";
  EXPECT_EQ(tokenizer->EncodeMarked(text, {}), (Ids{kUser, kThink, kUser}));
  const auto as_text = [&](std::string_view part) {
    return tokenizer->Encode(part, AddedTokens::kAsText);
  };
  for (const TextRange mark : {TextRange{8, 15}, TextRange{8, 9}, TextRange{14, 15}}) {
    Ids expected{kUser};
    for (const int32_t id : as_text("<think>")) expected.push_back(id);
    expected.push_back(kUser);
    EXPECT_EQ(tokenizer->EncodeMarked(text, std::array{mark}), expected);
  }
  EXPECT_EQ(tokenizer->EncodeMarked(text, std::array{TextRange{0, text.size()}}), as_text(text));
  // Half ours, half theirs is no token; the shorter one of ours is.
  EXPECT_EQ(tokenizer->EncodeMarked("<|user|>x", std::array{TextRange{8, 9}}), (Ids{kUser, 'x'}));
}

TEST(TokenizerTest, AnyBytesComeBack) {
  const auto tokenizer = Load(MiniTokenizer());
  std::vector<std::string> texts = {std::string("\0", 1),
                                    "\xFF",
                                    "\xC0\xAF",
                                    "\xE0\x80\xAF",
                                    "\xED\xA0\x80",
                                    "\xF4\x90\x80\x80",
                                    "\xF8\x88\x80\x80\x80",
                                    "a\xE6\xAD",
                                    "\x80",
                                    "\xC3(",
                                    "\xE6\xAD("
                                    "x"};
  const std::string characters = "é中🙂";
  for (size_t begin = 0; begin < characters.size(); ++begin) {
    for (size_t size = 1; size <= characters.size() - begin; ++size) {
      texts.push_back("ab " + characters.substr(begin, size) + " c");
    }
  }
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = static_cast<char>(random());
    texts.push_back(text);
  }
  for (const std::string& text : texts) {
    for (const AddedTokens added : {AddedTokens::kParse, AddedTokens::kAsText}) {
      EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text, added), false), text);
    }
  }
  // What is no UTF-8 goes byte by byte and does not join its neighbours.
  EXPECT_EQ(tokenizer->Encode("ab\xE6\xAD", AddedTokens::kParse), (Ids{kAb, 0xE6, 0xAD}));
  EXPECT_EQ(tokenizer->Encode("a\xFF"
                              "b",
                              AddedTokens::kParse),
            (Ids{'a', 0xFF, 'b'}));
}

TEST(TokenizerTest, RefusesIdsOutOfRange) {
  const auto tokenizer = Load(MiniTokenizer());
  EXPECT_THROW(tokenizer->TokenBytes(267), Error);
  EXPECT_THROW(tokenizer->TokenBytes(-1), Error);
  EXPECT_THROW(tokenizer->Decode(Ids{'a', 100000}, false), Error);
}

// Each line changes one place of a good file: pointer, new value, code, what the message names.
TEST(TokenizerTest, RefusesDamageAndForeignPartsByName) {
  const ErrorCode bad = ErrorCode::kBadFile, foreign = ErrorCode::kUnsupported;
  const std::tuple<const char*, Json, ErrorCode, const char*> cases[] = {
      {"/model", 5, bad, "\"model\""},
      {"/model/type", "WordPiece", foreign, "WordPiece"},
      {"/model/vocab", Json::array(), bad, "\"vocab\""},
      {"/model/vocab/a", "x", bad, "\"a\""},
      {"/model/vocab/a", -1, bad, "\"a\""},
      {"/model/vocab/a", 1.5, bad, "\"a\""},
      {"/model/vocab/a", 1 << 24, bad, "16777216"},
      {"/model/vocab/a", 'b', bad, "id 98"},
      {"/model/merges", "a b", bad, "\"merges\""},
      {"/model/merges/0", 5, bad, "merge 0"},
      {"/model/merges/0", "ab", bad, "merge 0"},
      {"/model/merges/0", "a b c", bad, "merge 0"},
      {"/model/merges/0", Json::array({"a"}), bad, "merge 0"},
      {"/model/merges/0", Json::array({"a", ""}), bad, "merge 0"},
      {"/model/merges/0", Json::array({"a", "nosuch"}), bad, "nosuch"},
      {"/model/merges/0", Json::array({"a", "z"}), bad, "\"az\""},
      {"/model/dropout", 0.1, foreign, "dropout"},
      {"/model/continuing_subword_prefix", "##", foreign, "continuing_subword_prefix"},
      {"/model/ignore_merges", "yes", bad, "ignore_merges"},
      {"/normalizer", {{"type", "NFC"}}, foreign, "normalizer"},
      {"/pre_tokenizer", nullptr, foreign, "pre-tokenizer"},
      {"/pre_tokenizer/type", "Whitespace", foreign, "Whitespace"},
      {"/pre_tokenizer/pretokenizers", Json::array(), bad, "pretokenizers"},
      {"/pre_tokenizer/pretokenizers/0/type", "Digits", foreign, "Digits"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Removed", foreign, "Removed"},
      {"/pre_tokenizer/pretokenizers/0/invert", true, foreign, "invert"},
      {"/pre_tokenizer/pretokenizers/0/pattern", "x", bad, "pattern"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(", bad, "does not compile"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "", bad, "empty"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+", foreign, "\\w"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(?R)", foreign, "(?R)"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(*UTF)a", foreign, "(*"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true, foreign, "add_prefix_space"},
      {"/decoder/type", "WordPiece", foreign, "decoder"},
      {"/post_processor", {{"type", "BertProcessing"}}, foreign, "post_processor"},
      {"/added_tokens", 5, bad, "added_tokens"},
      {"/added_tokens/0", 5, bad, "added token 0"},
      {"/added_tokens/0/content", "", bad, "added token 0"},
      {"/added_tokens/0/content", 5, bad, "content"},
      {"/added_tokens/0/id", "7", bad, "<|user|>"},
      {"/added_tokens/0/id", 264, bad, "264"},
      {"/added_tokens/0/id", 97, bad, "97"},
      {"/added_tokens/1/content", "<|user|>", bad, "twice"},
      {"/added_tokens/0/content", "ab", bad, "\"ab\""},
      {"/added_tokens/0/lstrip", true, foreign, "lstrip"},
      {"/added_tokens/0/rstrip", true, foreign, "rstrip"},
      {"/added_tokens/0/single_word", true, foreign, "single_word"},
      {"/added_tokens/0/special", 1, bad, "special"},
      {"/added_tokens/0", {{"id", 97}, {"content", "a"}}, foreign, "as a byte"},
  };
  for (const auto& [where, value, code, part] : cases) {
    Json json = MiniTokenizer();
    json[Json::json_pointer(where)] = value;
    SCOPED_TRACE(std::string(where) + " = " + value.dump());
    ExpectError(json, code, part);
  }
}

TEST(TokenizerTest, RefusesMissingParts) {
  const std::pair<const char*, ErrorCode> cases[] = {{"model", ErrorCode::kBadFile},
                                                     {"pre_tokenizer", ErrorCode::kUnsupported}};
  for (const auto& [name, code] : cases) {
    Json json = MiniTokenizer();
    json.erase(name);
    ExpectError(json, code, "");
  }
  Json json = MiniTokenizer();
  json["model"]["vocab"].erase("z");
  ExpectError(json, ErrorCode::kUnsupported, "byte 122");
  for (const char* text : {"", "{", "[]", "null", "{\"model\":{}}"}) {
    EXPECT_THROW(Tokenizer::FromJson(text), Error) << text;
  }
  EXPECT_THROW(Tokenizer::FromJson(std::string(100000, '[')), Error);
}

TEST(TokenizerTest, CatastrophicPatternsEndWithAnError) {
  Json json = MiniTokenizer();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a|aa)+(?:a|aa)+(?:a|aa)+[bc]";
  EXPECT_THROW(Encode(json, std::string(2000, 'a')), Error);
}

// Not quadratic: a megabyte of one class of characters takes well under a second even with
// sanitizers on; a quadratic way would take hours.
TEST(TokenizerTest, LongRunsTakeLinearTime) {
  const auto tokenizer = Load(MiniTokenizer());
  for (const char* unit :
       {"a", " ", "\n", "1", "-", "中", "\xFF", "ab", "<|user|", "\r\n", "\u00A0"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const auto begin = std::chrono::steady_clock::now();
    const Ids ids = tokenizer->Encode(text, AddedTokens::kParse);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), 20) << unit;
    EXPECT_EQ(tokenizer->Decode(ids, false), text);
  }
}

TEST(TokenizerTest, DemoModelsPromptsAsTransformersEncodesThem) {
  if (std::string(HILLSTAR_DEMO_CHECKPOINT).empty()) GTEST_SKIP() << "no demo checkpoint is given";
  const auto tokenizer = LoadDemo();
  std::ifstream file(std::string(HILLSTAR_DEMO_CHECKPOINT) + "/oracle.json");
  const Json oracle = Json::parse(file);
  for (const Json& entry : oracle["cases"]) {
    const std::string prompt = entry["prompt"];
    const Ids expected = entry["prompt_ids"];
    EXPECT_EQ(tokenizer->Encode(prompt, AddedTokens::kParse), expected) << entry["name"];
    EXPECT_EQ(tokenizer->Decode(expected, false), prompt);
  }
}

// Code that walks such a document by recursion would run out of stack.
TEST(TokenizerTest, DeepNestingIsRefused) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  for (const std::string& text :
       {deep, R"({"normalizer":)" + deep + "}", R"({"model":{"type":)" + deep + "}}"}) {
    try {
      Tokenizer::FromJson(text);
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kBadFile);
      EXPECT_STREQ(e.what(), "tokenizer.json nests deeper than 64 levels.");
    }
  }
}

TEST(Utf8StreamTest, EverySplitGivesTheSameText) {
  const std::string text = "aé中🙂z";
  for (size_t first = 0; first <= text.size(); ++first) {
    for (size_t second = first; second <= text.size(); ++second) {
      Utf8Stream stream;
      std::string out = stream.Push(text.substr(0, first));
      EXPECT_EQ(ValidUtf8Prefix(out), out.size());
      out += stream.Push(text.substr(first, second - first));
      out += stream.Push(text.substr(second));
      EXPECT_EQ(out, text);
      EXPECT_EQ(stream.Finish(), "");
    }
  }
}

TEST(Utf8StreamTest, InvalidBytesBecomeReplacementCharacters) {
  // Expected values by the WHATWG decoder (one U+FFFD for each maximal subpart).
  const std::pair<const char*, const char*> cases[] = {
      {"\xFF", "\uFFFD"},
      {"a\x80z", "a\uFFFDz"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
      {"\xE0\x80\xAF", "\uFFFD\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE6\xAD(", "\uFFFD("},
      {"\xF0\x9F\x99", "\uFFFD"},
      {"\xF0\x9F\x99\xC3\xA9", "\uFFFDé"},
      {"\xE4\xB8\xE4\xB8\xAD", "\uFFFD中"},
      {"\xC3", "\uFFFD"},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_EQ(ReplaceInvalidUtf8(bytes), expected);
    Utf8Stream stream;
    std::string out;
    for (const char byte : std::string_view(bytes)) out += stream.Push(std::string(1, byte));
    EXPECT_EQ(out + stream.Finish(), expected);
  }
}

TEST(Utf8StreamTest, HoldsOnlyTheUnfinishedCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Push("a\xE4\xB8"), "a");
  EXPECT_EQ(stream.Push("\xAD"
                        "b"),
            "中b");
  EXPECT_EQ(stream.Push("\xF0"), "");
  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Finish(), "");
}

}  // namespace
}  // namespace hillstar
