#include "grammar/matcher.h"

#include <thread>

#include "grammar/grammar_test_answers.h"

namespace hillstar {
namespace {

std::vector<uint32_t> MaskOf(GrammarMatcher* matcher) {
  std::vector<uint32_t> mask(PocketTrie()->num_words());
  matcher->Mask(mask);
  return mask;
}

size_t NumAllowed(const std::vector<uint32_t>& mask) {
  size_t count = 0;
  for (const uint32_t word : mask) count += size_t(std::popcount(word));
  return count;
}

TEST(MatcherTest, MaskFitsTheSpanThatIsGiven) {
  GrammarMatcher matcher(GrammarOfJsonObject(), PocketTrie());
  std::vector<uint32_t> longer(PocketTrie()->num_words() + 3, 0xFFFFFFFF);
  matcher.Mask(longer);
  const std::vector<uint32_t> exact = MaskOf(&matcher);
  for (size_t i = 0; i < longer.size(); ++i) EXPECT_EQ(longer[i], i < exact.size() ? exact[i] : 0);
  std::vector<uint32_t> shorter(2, 0xFFFFFFFF);
  matcher.Mask(shorter);
  EXPECT_EQ(shorter, std::vector<uint32_t>(exact.begin(), exact.begin() + 2));
}

TEST(MatcherTest, WhatIsNotAllowedChangesNothing) {
  GrammarMatcher matcher(GrammarOfJsonObject(), PocketTrie());
  const std::vector<uint32_t> before = MaskOf(&matcher);
  for (const int32_t id : {-1, 8192, 1 << 30, 0, *PocketTokenizer().AddedTokenId("<think>")}) {
    EXPECT_FALSE(matcher.Accept(id)) << id;
  }
  EXPECT_FALSE(matcher.AcceptBytes("{\"a\": x"));
  EXPECT_EQ(MaskOf(&matcher), before);
  EXPECT_TRUE(matcher.AcceptBytes("{\"a\": {}}"));
  EXPECT_TRUE(matcher.is_ended());
  EXPECT_EQ(NumAllowed(MaskOf(&matcher)), 0u);
  EXPECT_FALSE(matcher.AcceptBytes(" "));
}

TEST(MatcherTest, KnowsTheEndAndTheWayToIt) {
  const auto grammar = GrammarOfGbnf("root ::= \"ab\" \"c\"* | \"abcde\"", PocketTokenizer());
  GrammarMatcher matcher(grammar, PocketTrie());
  EXPECT_EQ(matcher.min_bytes_to_end(), 2u);
  EXPECT_TRUE(matcher.AcceptBytes("ab"));
  EXPECT_TRUE(matcher.can_end());
  EXPECT_FALSE(matcher.is_ended());
  EXPECT_TRUE(matcher.AcceptBytes("cd"));
  EXPECT_FALSE(matcher.can_end());
  EXPECT_EQ(matcher.min_bytes_to_end(), 1u);
  EXPECT_TRUE(matcher.AcceptBytes("e"));
  EXPECT_TRUE(matcher.is_ended());
}

TEST(MatcherTest, CopiesGoTheirOwnWays) {
  GrammarMatcher matcher(GrammarOfJsonSchema(R"({"enum":[12,13,"a"]})"), PocketTrie());
  ASSERT_TRUE(matcher.AcceptBytes("1"));
  GrammarMatcher copy = matcher;
  EXPECT_TRUE(copy.AcceptBytes("2"));
  EXPECT_TRUE(matcher.AcceptBytes("3"));
  EXPECT_TRUE(copy.is_ended() && matcher.is_ended());
}

// A character of a text is allowed byte by byte where the tokenizer has bytes, and never left open.
TEST(MatcherTest, CharactersCutIntoBytes) {
  const auto grammar = GrammarOfJsonSchema(R"({"type":"string","maxLength":2})");
  for (const std::string text : {"é", "日", "🙂"}) {
    GrammarMatcher matcher(grammar, PocketTrie());
    ASSERT_TRUE(matcher.AcceptBytes("\""));
    for (size_t i = 0; i < text.size(); ++i) {
      EXPECT_EQ(Allows(&matcher, PocketTokenizer().Encode("\"", AddedTokens::kAsText)[0]), i == 0);
      const int32_t byte = PocketTokenizer().Encode(text.substr(i, 1), AddedTokens::kAsText)[0];
      ASSERT_TRUE(Allows(&matcher, byte));
      ASSERT_TRUE(matcher.Accept(byte));
    }
    EXPECT_TRUE(matcher.AcceptBytes("x\""));
  }
}

// Each character of a bounded text is a state of its own: more than are kept at once.
TEST(MatcherTest, LongTextsGiveTheirMemoryBack) {
  const auto grammar = GrammarOfJsonSchema(R"({"type":"string","maxLength":9000})");
  GrammarMatcher matcher(grammar, PocketTrie());
  ASSERT_TRUE(matcher.AcceptBytes("\""));
  const int32_t quote = PocketTokenizer().Encode("\"", AddedTokens::kAsText)[0];
  for (int i = 0; i < 9000; ++i) {
    EXPECT_TRUE(i % 100 != 0 || Allows(&matcher, quote)) << i;
    ASSERT_TRUE(matcher.AcceptBytes("x")) << i;
  }
  EXPECT_EQ(NumAllowed(MaskOf(&matcher)), 1u);
  EXPECT_TRUE(matcher.Accept(quote));
}

TEST(MatcherTest, DeepNestingGivesItsMemoryBack) {
  GrammarMatcher matcher(GrammarOfJsonSchema("true"), PocketTrie());
  constexpr int kDepth = 100'000;
  for (int i = 0; i < kDepth; ++i) {
    ASSERT_TRUE(matcher.AcceptBytes("["));
    EXPECT_TRUE(i % 1000 != 0 || NumAllowed(MaskOf(&matcher)) > 0);
  }
  EXPECT_EQ(matcher.min_bytes_to_end(), uint32_t(kDepth));
  for (int i = 0; i < kDepth; ++i) ASSERT_TRUE(matcher.AcceptBytes("]")) << i;
  EXPECT_TRUE(matcher.is_ended());
}

TEST(MatcherTest, ThreadsShareAGrammar) {
  const char* const schema =
      R"({"type":"object","additionalProperties":{"anyOf":[{"type":"string"},{"type":"number"}]}})";
  const auto shared = GrammarOfJsonSchema(schema);
  std::vector<std::string> expected(8), found(8);
  for (uint32_t i = 0; i < 8; ++i) {
    bool ends = false;
    expected[i] = RandomAnswer(GrammarOfJsonSchema(schema), i, 40, false, &ends);
  }
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      bool ends = false;
      found[i] = RandomAnswer(shared, i, 40, false, &ends);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, expected);
}

TEST(TokenTrieTest, HoldsEveryTokenButAddedOnes) {
  const TokenTrie::Tree& tree = PocketTrie()->all();
  std::vector<bool> seen(size_t(PocketTrie()->vocab_size()));
  for (const int32_t id : tree.tokens) seen[size_t(id)] = true;
  for (int32_t id = 0; id < PocketTrie()->vocab_size(); ++id) {
    const std::string text(PocketTokenizer().TokenBytes(id));
    const bool is_added = PocketTokenizer().AddedTokenId(text) == id;
    EXPECT_EQ(seen[size_t(id)], !is_added) << text;
  }
}

TEST(TokenTrieTest, PlainTokens) {
  const std::vector<std::string> tokens = {
      "a",   "ab",          "a\"b",  "é日", "\xC3", "<a",
      "a\\", "\t",          "a\x7f", "",    "ab",   std::string(40, 'x'),
      " ",   "\xED\xA0\x80"};
  const auto trie = TokenTrie::OfTokens(tokens);
  EXPECT_EQ(trie->PlainTokens(1)[0], 1u << 0 | 1u << 12);
  EXPECT_EQ(trie->PlainTokens(2)[0], 1u << 0 | 1u << 12 | 1u << 1 | 1u << 10 | 1u << 3);
  EXPECT_EQ(trie->PlainTokens(32)[0], trie->PlainTokens(2)[0]);
  EXPECT_EQ(trie->all().tokens.size(), 13u);
  EXPECT_EQ(trie->rest().tokens.size(), 8u);
}

}  // namespace
}  // namespace hillstar
