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
  return identity;
}

}  // namespace

fs::path SessionPath(const std::string& name) {
  const bool is_printable = std::ranges::none_of(name, [](char c) { return uint8_t(c) < 32; });
  if (name.empty() || name.front() == '.' || !is_printable) {
    throw Error(ErrorCode::kUsage,
                fmt::format("--session \"{}\" is no name for a session: it is empty, begins with a "
                            "dot or holds control characters",
                            EscapeControls(name)));
  }
  if (name.find('/') != std::string::npos) return name;
  const fs::path folder = SessionFolder();
  if (folder.empty()) {
    throw Error(ErrorCode::kIo,
                "there is no home folder to keep sessions in; --session FOLDER/FILE names a file");
  }
  return folder / (name + ".session");
}

SavedChat::SavedChat(Engine& engine, const fs::path& path)
    : path_(path), identity_(IdentityOf(engine)) {
  std::error_code none;
  if (!fs::exists(path, none)) {
    file_ = SessionFile::Create(path, identity_);
    return;
  }
  try {
    file_ = SessionFile::Open(path, identity_, SessionCheck::kCommit);  // pages are read once
    told_ = file_->findings();
    meta_ = file_->meta();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kUnsupported) throw;
    const SessionContent content = ReadSession(path);  // throws where the file is too new
    told_ = content.findings;
    told_.push_back(fmt::format(
        "{} was saved with {}: its messages go on, its {} will be computed with the next answer",
        path.string(), DescribeDifference(content.identity, identity_),
        CountText(int64_t(content.ids.size()), "token")));
    meta_ = content.meta;
    file_ = SessionFile::Create(path, identity_);
  }
}

std::vector<std::string> SavedChat::Restore(Conversation& conversation) {
  std::vector<std::string> notes = std::move(told_);
  const size_t num_told = file_->findings().size();
  if (meta_.empty()) return notes;
  conversation.FromJson(meta_, path_.string());
  const std::vector<int32_t> ids = file_->ids();
  try {
    const int64_t rows = RestoreRows(conversation.sequence());
    notes.insert(notes.end(), file_->findings().begin() + std::ptrdiff_t(num_told),
                 file_->findings().end());
    if (rows < int64_t(ids.size())) {
      conversation.sequence().Append(std::span(ids).subspan(size_t(rows)), LogitsMode::kNone);
      notes.push_back(
          fmt::format("{} computed again", CountText(int64_t(ids.size()) - rows, "token")));
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kBadRequest) throw;
    throw Error(ErrorCode::kBadFile, fmt::format("{}: {}", path_.string(), error.what()));
  }
  notes.push_back(fmt::format("{} of the conversation and {} are back",
                              CountText(int64_t(conversation.messages().size()), "message"),
                              CountText(int64_t(ids.size()), "token")));
  return notes;
}

int64_t SavedChat::RestoreRows(Sequence& sequence) {
  std::vector<uint8_t> page(identity_.page_bytes);
  const auto read = [&](int64_t i, std::span<uint8_t> latents, std::span<uint8_t> keys) {
    // Thrown, so that the sequence never holds, or offers to others, what is damaged.
    if (!file_->ReadPage(i, page)) throw Error(ErrorCode::kBadFile, "a damaged page");
    std::copy_n(page.begin(), latents.size(), latents.begin());
    std::copy_n(page.begin() + std::ptrdiff_t(latents.size()), keys.size(), keys.begin());
  };
  while (true) {
    const int64_t rows = file_->num_leading_rows();
    try {
      sequence.Restore(std::span(file_->ids()).first(size_t(rows)), read);
      return rows;
    } catch (const Error& error) {
      // A page that turned out to be damaged is absent now, so fewer rows lead.
      if (error.code() != ErrorCode::kBadFile || file_->num_leading_rows() >= rows) throw;
    }
  }
}

void SavedChat::Save(const Conversation& conversation) {
  const Sequence& sequence = conversation.sequence();
  file_->Save(sequence.ids(), sequence.num_tokens(), conversation.Json(),
              [&](int64_t page, std::span<uint8_t> out) { sequence.CopyPage(page, out); });
  file_->CompactIfDue();
}

}  // namespace hillstar
