// Conversations that outlive the program: saved, restored, damaged, of another model, imported.
#include "cli/saved_chat.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "cli/chat.h"
#include "cli/colibri_chat.h"
#include "engine/fake_engine.h"
#include "formats/file_io.h"

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

// Counts the tokens that its sequences have computed, and keeps how they were made.
class CountingEngine : public FakeEngine {
 public:
  CountingEngine() : FakeEngine(CountingModel(FakeEngine({}).tokenizer().vocab_size())) {}
  std::unique_ptr<Sequence> NewSequence(const SequenceOptions& options) override {
    class CountingSequence : public FakeSequence {
     public:
      explicit CountingSequence(CountingEngine& engine)
          : FakeSequence(CountingModel(engine.tokenizer().vocab_size()),
                         engine.tokenizer().vocab_size(), engine.context_tokens()),
            engine_(engine) {}
      ~CountingSequence() override { engine_.num_appended += num_appended; }

     private:
      CountingEngine& engine_;
    };
    made_with.push_back(options);
    return std::make_unique<CountingSequence>(*this);
  }
  int64_t num_appended = 0;
  std::vector<SequenceOptions> made_with;
};

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
    return {code, out.str(), notes.str()};
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

// Of the prompt of the next answer the saved rows are taken over, and no other is computed.
TEST_F(SavedChatTest, WhatWasSavedIsNotComputedAgain) {
  Run("hello\nmore\n");
  FakeEngine engine(CountingModel(FakeEngine({}).tokenizer().vocab_size()));
  SavedChat saved(engine, path_);
  Conversation conversation(engine, {}, {});
  saved.Restore(conversation);
  const auto& sequence = dynamic_cast<const FakeSequence&>(conversation.sequence());
  EXPECT_EQ(sequence.num_appended, 0);
  EXPECT_GT(sequence.num_tokens(), int64_t(std::string("hellomore").size()));
}

TEST_F(SavedChatTest, AConversationInPiecesComputesWhatItComputesAtOnce) {
  const auto appended = [&](const std::string& input) {
    CountingEngine engine;
    Run(input, &engine);
    return engine.num_appended;
  };
  const int64_t in_pieces = appended("hello\n") + appended("more\n") + appended("last\n");
  fs::remove(path_);
  EXPECT_EQ(in_pieces, appended("hello\nmore\nlast\n"));
  EXPECT_GT(in_pieces, 0);
}

// The old conversation stays where it cannot be replaced, and goes with a later save.
TEST_F(SavedChatTest, AForgettingThatFailsIsMadeUpFor) {
  Run("my secret\n");
  const auto holds_secret = [&] {
    return ReadWholeFile(path_, 1 << 20).find("my secret") != std::string::npos;
  };
  CountingEngine engine;
  SavedChat saved(engine, path_);
  Conversation conversation(engine, {}, {});
  saved.Restore(conversation);
  conversation.Clear();
  const fs::path obstacle = path_.native() + ".partial";
  fs::create_directories(obstacle / "inside");
  EXPECT_THROW(saved.SaveAnew(conversation), Error);
  EXPECT_TRUE(holds_secret());
  const auto notes = saved.Save(conversation);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("still holds what was forgotten"), std::string::npos) << notes[0];
  fs::remove_all(obstacle);
  EXPECT_TRUE(saved.Save(conversation).empty());
  EXPECT_FALSE(holds_secret());
}

// Every page that its sequences copy has the bytes 0xaa, whatever its tokens.
class StaleEngine : public FakeEngine {
 public:
  explicit StaleEngine(KvFormat format) : FakeEngine({}) {
    shape_.row = {6, 4, format};
    shape_.index = {16, NumIndexPlanes(format)};
    shape_.num_layers = 3;
    shape_.has_index_keys = {true, false, true};
  }
  std::unique_ptr<Sequence> NewSequence(const SequenceOptions&) override {
    class StaleSequence : public FakeSequence {
     public:
      using FakeSequence::FakeSequence;
      void CopyPage(int64_t, std::span<uint8_t> out) const override {
        std::ranges::fill(out, uint8_t{0xaa});
      }
    };
    return std::make_unique<StaleSequence>(FakeModel(), tokenizer().vocab_size(), 4096);
  }
  const KvShape& kv_shape() const override { return shape_; }
  int64_t page_bytes() const override { return shape_.page_bytes(); }

 private:
  KvShape shape_;
};

// Rows behind the last one are what the page's memory held before: of what was forgotten, perhaps.
TEST_F(SavedChatTest, RowsThatDoNotCountAreSavedAsZeros) {
  for (const KvFormat format : {KvFormat::kQ15, KvFormat::kQ8}) {
    StaleEngine engine(format);
    SavedChat saved(engine, path_);
    Conversation conversation(engine, {}, {});
    conversation.sequence().Append(std::vector<int32_t>(64 + 21, 'x'), LogitsMode::kNone);
    saved.Save(conversation);
    const KvShape& shape = engine.kv_shape();
    const int64_t row_bytes =
        3 * shape.row.row_bytes() + 2 * shape.index.page_bytes() / kPageTokens;
    // One page has all rows, one has 21. The head and the commit have such bytes too, by chance.
    const int64_t num_stale = std::ranges::count(ReadWholeFile(path_, 1 << 20), '\xaa');
    EXPECT_GE(num_stale, (64 + 21) * row_bytes);
    EXPECT_LT(num_stale, (64 + 22) * row_bytes);
    fs::remove(path_);
  }
}

TEST_F(SavedChatTest, RowsOfFilesAreNotOfferedToOthers) {
  const auto shares = [&](SavedChat* saved, bool imports) {
    CountingEngine engine;
    std::istringstream in("");
    std::ostringstream out, notes;
    const auto lines = StreamLines(in);
    const Options options;
    ChatSession session{engine, options, false, false, *lines, out, notes};
    session.saved = saved;
    if (imports) session.import = [](Conversation&) { return std::vector<std::string>(); };
    Chat(session);
    return engine.made_with.at(0).shares_prefixes;
  };
  CountingEngine engine;
  SavedChat saved(engine, path_);
  EXPECT_TRUE(shares(nullptr, false));
  EXPECT_FALSE(shares(&saved, false));
  EXPECT_FALSE(shares(nullptr, true));
}

// The conversation is saved, so that is no failure; and what takes long is not tried every time.
TEST_F(SavedChatTest, ACompactionThatFailsIsToldAndNotTriedAgainAtOnce) {
  CountingEngine engine;
  SavedChat saved(engine, path_, /*min_garbage_bytes=*/1);
  Conversation conversation(engine, {}, {});
  saved.Save(conversation);
  const fs::path obstacle = path_.native() + ".partial";
  fs::create_directories(obstacle / "inside");
  std::vector<int> told_at;
  const auto say = [&](int number) {
    const std::string text = "number " + std::to_string(number);
    conversation.SetMessages({{"user", text, "", {}}});
    const auto notes = saved.Save(conversation);
    EXPECT_NE(ReadWholeFile(path_, 1 << 24).find(text), std::string::npos);
    if (notes.empty()) return;
    EXPECT_NE(notes[0].find("is saved, but its file could not be made smaller"), std::string::npos)
        << notes[0];
    told_at.push_back(number);
  };
  for (int number = 1; number <= 40; ++number) say(number);
  // Each save leaves a commit of garbage: after n saves there are n.
  ASSERT_GE(told_at.size(), 3u);
  for (size_t i = 1; i < told_at.size(); ++i) EXPECT_GE(2 * told_at[i], 3 * told_at[i - 1]);
  fs::remove_all(obstacle);
  const size_t num_told = told_at.size();
  const auto size = fs::file_size(path_);
  for (int number = 41; number <= 80; ++number) say(number);
  EXPECT_EQ(told_at.size(), num_told);
  EXPECT_LT(fs::file_size(path_), size / 4);  // and is due again as it was at first
}

TEST_F(SavedChatTest, WhatIsForgottenIsNotOnTheDriveEither) {
  for (const std::string command : {"/clear", "/system Be brief."}) {
    Run("my secret is hunter2\nmore\n" + command + "\n");
    const std::string bytes = ReadWholeFile(path_, 1 << 20);
    EXPECT_EQ(bytes.find("hunter2"), std::string::npos) << command;
    // The fake's rows are the ids.
    const int32_t ids[] = {'h', 'u', 'n', 't', 'e', 'r'};
    const std::string rows(reinterpret_cast<const char*>(ids), sizeof ids);
    EXPECT_EQ(bytes.find(rows), std::string::npos) << command;
    EXPECT_EQ(bytes.find("Be brief.") != std::string::npos, command != "/clear");
    const Talk talk = Run("again\n");
    EXPECT_EQ(talk.out, "b\n");
    EXPECT_EQ(talk.notes.find("restored") != std::string::npos, command != "/clear") << talk.notes;
    fs::remove(path_);
  }
}

// What is not UTF-8 is replaced before the model sees it, so that the saved text says the same.
TEST_F(SavedChatTest, InvalidTextIsTheSameAfterwards) {
  Run("a river\xff\xfe?\n");
  FakeEngine engine(CountingModel(FakeEngine({}).tokenizer().vocab_size()));
  SavedChat saved(engine, path_);
  Conversation conversation(engine, {}, {});
  saved.Restore(conversation);
  EXPECT_EQ(conversation.messages()[0].content, "a river\xef\xbf\xbd\xef\xbf\xbd?");
  const auto ids = conversation.sequence().ids();
  EXPECT_EQ(std::ranges::count(ids, 0xff), 0);
  EXPECT_EQ(std::ranges::count(ids, 0xbd), 2);
}

TEST_F(SavedChatTest, AContextThatIsTooShortIsSaid) {
  Run("hello\n" + std::string(60, 'x') + "\n");
  FakeEngine engine(CountingModel(FakeEngine({}).tokenizer().vocab_size()), 40);
  try {
    Run("more\n", &engine);
    FAIL() << "is not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBudget);
    EXPECT_NE(std::string(error.what()).find(path_.native() + " has "), std::string::npos)
        << error.what();
  }
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
  int told = 0, refused = 0, tries = 0;
  for (uint64_t at = 1; at <= size; at += size / 97 + 1) {
    fs::copy_file(whole, path_, fs::copy_options::overwrite_existing);
    Damage(at);
    ++tries;
    try {
      const Talk talk = Run("last\n");
      EXPECT_EQ(talk.out, "d\n") << "byte " << at << " from the end";
      told += talk.notes.find("damaged") != std::string::npos;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(told, 0);
  EXPECT_EQ(refused, 0) << "of " << tries;  // head and commit are there twice
}

TEST(SessionPath, NamesAndFiles) {
  for (const char* file : {"some/file", "./file", "../file", "/folder/.file"}) {
    EXPECT_EQ(SessionPath(file), file);
  }
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
