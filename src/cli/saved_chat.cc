#include "cli/saved_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "cli/terminal.h"
#include "cli/user_folders.h"
#include "kv/kv_shape.h"

namespace hillstar {
namespace {

namespace fs = std::filesystem;

// 32 bytes of 64 hexadecimal digits.
std::array<uint8_t, 32> BytesOf(const std::string& hex) {
  std::array<uint8_t, 32> bytes{};
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::from_chars(hex.data() + 2 * i, hex.data() + 2 * i + 2, bytes[i], 16);
  }
  return bytes;
}

SessionIdentity IdentityOf(const Engine& engine) {
  SessionIdentity identity;
  identity.model = BytesOf(engine.identity());
  identity.kv_format = engine.kv_format();
  identity.page_bytes = uint64_t(engine.page_bytes());
  identity.page_tokens = uint32_t(kPageTokens);
  identity.num_layers = uint32_t(std::max<int64_t>(1, engine.kv_shape().num_layers));
  identity.selects_keys = engine.selects_keys();
  return identity;
}

}  // namespace

fs::path SessionPath(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const auto refuse = [&](const char* why) {
    throw Error(ErrorCode::kUsage, fmt::format("--session \"{}\" is no name for a session: it {}",
                                               EscapeControls(name), why));
  };
  if (name.empty()) refuse("is empty");
  if (name.front() == '.') refuse("begins with a dot");
  if (std::ranges::any_of(name, [](char c) { return uint8_t(c) < 32; })) {
    refuse("holds control characters");
  }
  const fs::path folder = SessionFolder();
  if (folder.empty()) {
    throw Error(ErrorCode::kIo,
                "there is no home folder to keep sessions in; --session FOLDER/FILE names a file");
  }
  return folder / (name + ".session");
}

SavedChat::SavedChat(Engine& engine, const fs::path& path)
    : context_tokens_(engine.context_tokens()),
      file_(SessionFile::OpenOrCreate(path, IdentityOf(engine))) {}

std::vector<std::string> SavedChat::Restore(Conversation& conversation) {
  if (!file_.meta().empty()) conversation.FromJson(file_.meta(), file_.name());
  const int64_t num_tokens = int64_t(file_.ids().size());
  if (num_tokens > context_tokens_) {
    throw Error(ErrorCode::kBudget,
                fmt::format("the conversation in {} has {} tokens and does not fit the context of "
                            "{} (--context)",
                            file_.name(), num_tokens, context_tokens_));
  }
  int64_t rows = 0;
  try {
    rows = RestoreRows(conversation.sequence());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadRequest) throw;
    throw Error(ErrorCode::kBadFile, fmt::format("{}: {}", file_.name(), error.what()));
  }
  std::vector<std::string> notes = file_.findings();
  num_told_ = notes.size();
  if (!conversation.messages().empty()) {
    notes.push_back(fmt::format("of {} {} are back, with {} of {}", file_.name(),
                                CountText(int64_t(conversation.messages().size()), "message"), rows,
                                CountText(num_tokens, "token")));
  }
  if (rows < num_tokens) {
    notes.push_back(fmt::format("{} will be computed again with the next answer",
                                CountText(num_tokens - rows, "token")));
  }
  return notes;
}

int64_t SavedChat::RestoreRows(Sequence& sequence) {
  std::vector<uint8_t> page(file_.identity().page_bytes);
  const auto read = [&](int64_t i, std::span<uint8_t> latents, std::span<uint8_t> keys) {
    // Thrown, so that the sequence never holds, or offers to others, what is damaged.
    if (!file_.ReadPage(i, page)) throw Error(ErrorCode::kBadFile, "a damaged page");
    std::copy_n(page.begin(), latents.size(), latents.begin());
    std::copy_n(page.begin() + std::ptrdiff_t(latents.size()), keys.size(), keys.begin());
  };
  while (true) {
    const int64_t rows = file_.num_leading_rows();
    try {
      sequence.Restore(std::span(file_.ids()).first(size_t(rows)), read);
      return rows;
    } catch (const Error& error) {
      // A page that turned out to be damaged is absent now, so fewer rows lead.
      if (error.code() != ErrorCode::kBadFile || file_.num_leading_rows() >= rows) throw;
    }
  }
}

std::vector<std::string> SavedChat::Save(const Conversation& conversation) {
  Write(conversation);
  std::vector<std::string> notes(file_.findings().begin() + std::ptrdiff_t(num_told_),
                                 file_.findings().end());
  num_told_ = file_.findings().size();
  try {
    file_.CompactIfDue(compact_from_);
  } catch (const Error& error) {
    // Not again after every answer: it would fill the disk each time.
    compact_from_ = file_.garbage_bytes() + file_.garbage_bytes() / 2;
    notes.push_back(fmt::format(
        "the conversation is saved, but its file could not be made smaller: {}", error.what()));
  }
  return notes;
}

void SavedChat::SaveAnew(const Conversation& conversation) {
  Write(conversation);
  file_.Compact();
}

void SavedChat::Write(const Conversation& conversation) {
  const Sequence& sequence = conversation.sequence();
  file_.Save(sequence.ids(), sequence.num_tokens(), conversation.Json(),
             [&](int64_t page, std::span<uint8_t> out) { sequence.CopyPage(page, out); });
}

}  // namespace hillstar
