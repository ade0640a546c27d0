#include <fmt/format.h>

#include "grammar/grammar_test_answers.h"

namespace hillstar {
namespace {

std::shared_ptr<const Grammar> Gbnf(const std::string& text) {
  return GrammarOfGbnf(text, PocketTokenizer());
}

void Check(const std::string& gbnf, const std::vector<std::string>& taken,
           const std::vector<std::string>& refused) {
  const auto grammar = Gbnf(gbnf);
  for (const std::string& text : taken) EXPECT_TRUE(Takes(grammar, text)) << gbnf << "\n" << text;
  for (const std::string& text : refused) {
    EXPECT_FALSE(Takes(grammar, text)) << gbnf << "\n" << text;
  }
}

TEST(GbnfTest, LiteralsClassesAndRepeats) {
  Check("root ::= \"ab\" [c-e]+ \"\\n\"? # a comment\n", {"abc", "abcde", "abc\n"},
        {"ab", "abf", "abc\n\n"});
  Check("root ::= [^a-c\\n]{2,3}", {"xy", "日本語", "🙂🙂"}, {"x", "ax", "wxyz", "x\n"});
  Check("root ::= (\"a\" | \"bc\"){2} .", {"aax", "abc\n", "bcbcé"}, {"aa", "abx", ""});
  Check("root ::= \"\\x41\\u00e9\\U0001F642\" [\\]\\-]*", {"Aé🙂", "Aé🙂]-"},
        {"Aé", "Aé🙂x"});
  Check("root ::= \"a\"{0} \"b\"{1,} \"c\"*", {"b", "bbcc"}, {"", "ab", "c"});
  Check("root ::= \"\"", {""}, {"a"});
}

TEST(GbnfTest, RulesGoOnOverLines) {
  Check(
      "# first\nroot ::= (\n  item\n  | \"(\" root \")\" # nested\n)\n\nitem ::=\n  \"x\" |\n  "
      "\"y\"\n",
      {"x", "((y))"}, {"(x", "xy"});
  Check("root ::= \"a\"\n  | \"b\"\nother-rule_1 ::= root", {"a", "b"}, {"ab"});
}

TEST(GbnfTest, Recursion) {
  Check("root ::= \"(\" root \")\" root | \"\"", {"", "()", "(()())()"}, {"(", ")(", "(()"});
  // What may be empty may be repeated, and stand in front of itself repeated.
  Check("root ::= (\"a\"? \"b\"?)* e e\ne ::= \"c\"*", {"", "ab", "bac", "ccc"}, {"ca"});
  Check("root ::= \"a\" root opt | \"a\"\nopt ::= \"b\"?", {"a", "aa", "aab", "aaabb"},
        {"b", "ab", "aabb"});
  // The same in several ways.
  Check("root ::= s\ns ::= \"a\" s | \"a\" s \"b\"? | \"\"", {"", "aaa", "aab"}, {"b", "abb"});
}

TEST(GbnfTest, TokensMatchByIdOnly) {
  const auto grammar = Gbnf("root ::= <tool_call> \"x\" !<tool_call>");
  const int32_t call = *PocketTokenizer().AddedTokenId("<tool_call>");
  const int32_t close = *PocketTokenizer().AddedTokenId("</tool_call>");
  const int32_t x = PocketTokenizer().Encode("x", AddedTokens::kAsText)[0];
  EXPECT_TRUE(TakesIds(grammar, {call, x, close}));
  EXPECT_TRUE(TakesIds(grammar, {call, x, x}));
  EXPECT_FALSE(TakesIds(grammar, {call, x, call}));
  EXPECT_FALSE(TakesIds(grammar, PocketTokenizer().Encode("<tool_call>x", AddedTokens::kAsText)));
  // An ordinary token may come by its number, its bytes or both.
  const auto both = Gbnf("root ::= <[" + std::to_string(x) + "]> \"1\" | \"x2\"");
  const auto digit = [&](const char* text) {
    return PocketTokenizer().Encode(text, AddedTokens::kAsText)[0];
  };
  EXPECT_TRUE(TakesIds(both, {x, digit("1")}));
  EXPECT_TRUE(TakesIds(both, {x, digit("2")}));
  EXPECT_FALSE(TakesIds(both, {x, x}));
  // Without a terminal for them, added tokens are never allowed.
  EXPECT_FALSE(TakesIds(Gbnf("root ::= .*"), {call}));
}

TEST(GbnfTest, SaysWhatIsWrongAndWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= a", "Line 1 of the grammar uses the rule 'a', which it does not define."},
      {"a ::= \"x\"", "defines no rule \"root\""},
      {"root ::= \"x\"\nroot ::= \"y\"",
       "Line 2 of the grammar defines the rule 'root' a second time."},
      {"root ::= \"x", "ends within a literal"},
      {"root ::= (\"x\"", "does not close a parenthesis"},
      {"root ::= [a", "ends within a literal"},
      {"root ::= \"x\"{3,2}", "repeats 3 to 2 times"},
      {"root ::= \"x\"{99999999999}", "repeats more often than"},
      {"root ::= \"\\q\"", "unknown escape"},
      {"root ::= \"\\ud800\"", "is no character"},
      {"root ::= <nothing>", "which is no added token"},
      {"root ::= <[8192]>", "names token 8192; the model has 8192"},
      {"root = \"x\"", "has no ::= behind"},
      {"root ::= \"x\" )", "has ')'"},
      {"root ::= root \"x\" | \"x\"", "'root' of the grammar begins with itself"},
      {"root ::= a\na ::= b? c\nb ::= \"x\"\nc ::= a | \"y\"", "begins with itself"},
      {"root ::= \"a\" root", "has no finite sentence"},
      {"root ::= \"\xff\"", "is not UTF-8"},
      {"", "defines no rule"}};
  for (const auto& [gbnf, sentence] : cases) {
    const std::string error = ErrorOf([&] { Gbnf(gbnf); });
    EXPECT_NE(error.find(sentence), std::string::npos) << gbnf << "\n" << error;
  }
}

TEST(GbnfTest, RefusesWhatIsTooLarge) {
  std::string nested = "root ::= " + std::string(200, '(') + "\"x\"" + std::string(200, ')');
  EXPECT_NE(ErrorOf([&] { Gbnf(nested); }), "");
  EXPECT_NE(ErrorOf([&] { Gbnf("root ::= (((\"a\"{9999}){9999}){9999}){9999}"); }), "");
  EXPECT_NE(ErrorOf([&] { Gbnf("root ::= (\"a\"|\"b\")* \"a\" (\"a\"|\"b\"){24}"); }), "");
  EXPECT_NE(ErrorOf([&] { Gbnf("root ::= \"x\" #" + std::string(300000, '#')); }), "");
  // Rules that call each other in a long chain are no more than that.
  std::string chain;
  for (int i = 0; i < 5000; ++i) chain += fmt::format("r{} ::= \"a\" r{}\n", i, i + 1);
  const auto grammar = Gbnf("root ::= r0\n" + chain + "r5000 ::= \"z\"\n");
  GrammarMatcher matcher(grammar, PocketTrie());
  EXPECT_TRUE(matcher.AcceptBytes(std::string(5000, 'a')));
  EXPECT_EQ(matcher.min_bytes_to_end(), 1u);
}

// Grammars that say the same in exponentially many ways: what is allowed may become less, but what
// the mask allows is accepted, and in bounded time.
TEST(GbnfTest, AmbiguousGrammarsStayBounded) {
  const char* const grammars[] = {
      "root ::= \"a\" root \"b\"? | \"a\" root \"c\"? | \"a\"",
      "root ::= x\nx ::= \"a\" x y? | \"a\" x z? | \"a\"\ny ::= \"b\" x\nz ::= \"c\" x y",
      "root ::= s\ns ::= [a-z] | \"a\" s s | \"a\" s"};
  for (const char* gbnf : grammars) {
    const auto grammar = Gbnf(gbnf);
    GrammarMatcher matcher(grammar, PocketTrie());
    std::vector<uint32_t> mask(PocketTrie()->num_words());
    std::mt19937 random(1);
    for (int step = 0; step < 60 && !matcher.is_stuck(); ++step) {
      matcher.Mask(mask);
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < PocketTrie()->vocab_size(); ++id) {
        if ((mask[size_t(id) / 32] >> (id % 32) & 1) != 0) allowed.push_back(id);
      }
      if (allowed.empty()) break;
      ASSERT_TRUE(matcher.Accept(allowed[random() % allowed.size()])) << gbnf;
    }
  }
}

TEST(GbnfTest, MasksAgreeWithAccept) {
  const char* const grammars[] = {
      "root ::= (\"the \" | \"a \") word (\" \" word)* [.!?]\nword ::= [a-z]+ | [0-9]{1,3}",
      "root ::= line+\nline ::= \"- \" [^\\n]* \"\\n\"",
      "root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
      "root ::= [\\u4e00-\\u9fff]+ \"。\"?"};
  for (const char* gbnf : grammars) {
    bool ends = false;
    for (uint32_t seed = 0; seed < 2; ++seed) RandomAnswer(Gbnf(gbnf), seed, 12, true, &ends);
  }
}

}  // namespace
}  // namespace hillstar
