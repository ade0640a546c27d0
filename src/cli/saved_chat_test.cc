// Conversations that outlive the program: saved, restored, damaged, of another model, imported.
#include "cli/saved_chat.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "cli/chat.h"
#include "cli/colibri_chat.h"
#include "engine/fake_engine.h"

namespace hillstar {
namespace {

namespace fs = std::filesystem;

// Answers every prompt with the letter that follows its number of user messages: b, c, d ...
FakeModel CountingModel(int64_t vocab) {
  return [=](std::span<const int32_t> ids) {
    std::vector<float> logits(size_t(vocab), 0.0f);
    const bool has_answered = ids.back() >= 'a' && ids.back() <= 'z' && ids[ids.size() - 2] >= 256;
    const auto users = std::ranges::count(ids, 257);
    logits[has_answered ? 257 : size_t('a' + users)] = 10.0f;
    return logits;
  };
}

class SavedChatTest : public testing::Test {
 protected:
  SavedChatTest() : folder_(fs::path(testing::TempDir()) / "saved_chat_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    path_ = folder_ / "talk.session";
  }
  ~SavedChatTest() override { fs::remove_all(folder_); }

  struct Talk {
    int exit_code;
    std::string out, notes;
    int64_t num_appended;  // tokens that the engine computed
  };
  // A run of the program with these lines of input.
  Talk Run(const std::string& input, Engine* engine = nullptr) {
    FakeEngine own(CountingModel(FakeEngine({}).tokenizer().vocab_size()));
    Engine& used = engine ? *engine : own;
    std::istringstream in(input);
    std::ostringstream out, notes;
    const auto lines = StreamLines(in);
    Options options;
    options.thinking = "off";
    SavedChat saved(used, path_);
    ChatSession session{used, options, false, false, *lines, out, notes};
    session.saved = &saved;
    const int code = Chat(session);
    return {code, out.str(), notes.str(), 0};
  }
  void Damage(uint64_t from_end) {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(0, std::ios::end);
    const auto size = uint64_t(file.tellg());
    file.seekp(std::streamoff(size - from_end));
    file.put('\x7e');
  }

  fs::path folder_, path_;
};

TEST_F(SavedChatTest, AConversationGoesOnAfterTheProgramEnds) {
  const Talk first = Run("hello\n"), second = Run("more\nand more\n"), third = Run("last\n");
  EXPECT_EQ(first.out, "b\n");
  EXPECT_EQ(second.out, "c\nd\n");
  EXPECT_EQ(third.out, "e\n");
  EXPECT_NE(third.notes.find("6 messages"), std::string::npos) << third.notes;
}

TEST_F(SavedChatTest, ClearingIsSavedToo) {
  Run("hello\n/clear\n");
  EXPECT_EQ(Run("again\n").out, "b\n");
}

TEST_F(SavedChatTest, AnotherFormatKeepsTheMessages) {
  class OtherFormat : public FakeEngine {
   public:
    using FakeEngine::FakeEngine;
    std::string_view kv_format() const override { return "q8"; }
  };
  Run("hello\n");
  OtherFormat other(CountingModel(FakeEngine({}).tokenizer().vocab_size()));
  const Talk talk = Run("more\n", &other);
  EXPECT_EQ(talk.out, "c\n");
  EXPECT_NE(talk.notes.find("q15 instead of q8"), std::string::npos) << talk.notes;
  EXPECT_EQ(talk.exit_code, 0);
}

TEST_F(SavedChatTest, TwoProgramsCannotShareASession) {
  Run("hello\n");
  FakeEngine engine(CountingModel(FakeEngine({}).tokenizer().vocab_size()));
  const SavedChat holder(engine, path_);
  EXPECT_THROW(SavedChat(engine, path_), Error);
}

TEST_F(SavedChatTest, WhatIsNoSessionIsLeftAlone) {
  std::ofstream(path_) << "a letter to my aunt";
  EXPECT_THROW(Run("hello\n"), Error);
  std::ifstream file(path_);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), "a letter to my aunt");
}

// Any byte that goes bad costs rows or the session, said in words, and never gives another answer.
TEST_F(SavedChatTest, ADamagedByteNeverChangesAnAnswer) {
  Run("hello\nmore\n");
  const auto size = fs::file_size(path_);
  const fs::path whole = folder_ / "whole";
  fs::copy_file(path_, whole);
  int told = 0, refused = 0;
  for (uint64_t at = 1; at <= size; at += size / 97 + 1) {
    fs::copy_file(whole, path_, fs::copy_options::overwrite_existing);
    Damage(at);
    try {
      const Talk talk = Run("last\n");
      EXPECT_EQ(talk.out, "d\n") << "byte " << at << " from the end";
      told += talk.notes.find("damaged") != std::string::npos;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(told + refused, 0);
}

TEST(SessionPath, NamesAndFiles) {
  EXPECT_EQ(SessionPath("some/file"), "some/file");
  EXPECT_THROW(SessionPath(""), Error);
  EXPECT_THROW(SessionPath(".hidden"), Error);
  EXPECT_THROW(SessionPath("a\nb"), Error);
}

TEST(ColibriChat, MessagesOfTokens) {
  const FakeEngine engine({});
  const Tokenizer& tokenizer = engine.tokenizer();
  const auto ids =
      tokenizer.Encode("x<|system|>be brief<|user|>hi<|assistant|><think>hm</think>hello<|user|>",
                       AddedTokens::kParse);
  const std::vector<ChatMessage> messages = MessagesOfTokens(tokenizer, ids);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[0].content, "be brief");
  EXPECT_EQ(messages[1].content, "hi");
  EXPECT_EQ(messages[2].role, "assistant");
  EXPECT_EQ(messages[2].reasoning_content, "hm");
  EXPECT_EQ(messages[2].content, "hello");
  EXPECT_TRUE(MessagesOfTokens(tokenizer, {}).empty());
}

}  // namespace
}  // namespace hillstar
