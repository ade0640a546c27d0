#include "cli/saved_chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>

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

// Zeroes the rows behind the first num_rows. They are of tokens that the page's memory held before:
// what was forgotten must not be saved with others.
void ClearRows(const KvShape& shape, int64_t num_rows, std::span<uint8_t> page) {
  const IndexKeyLayout& index = shape.index;
  for (int64_t place = num_rows; place < kPageTokens; ++place) {
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      const int64_t at = l * shape.row.page_bytes() + place * shape.row.row_bytes();
      std::ranges::fill(page.subspan(size_t(at), size_t(shape.row.row_bytes())), uint8_t{0});
    }
    const int64_t panel = place / kIndexPanelTokens * index.panel_bytes();
    const int64_t lane = place % kIndexPanelTokens;
    for (int64_t l = 0; l < shape.num_index_layers(); ++l) {
      uint8_t* bytes = &page[size_t(shape.latent_page_bytes() + l * index.page_bytes() + panel)];
      for (int64_t i = 0; i < index.dim; ++i) {
        bytes[index.high_at(lane, i)] = 0;
        if (index.num_planes == 2) bytes[index.low_at(lane, i)] = 0;
      }
      std::fill_n(bytes + index.scales_at() + 4 * lane, 4, uint8_t{0});
    }
  }
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

SavedChat::SavedChat(Engine& engine, const fs::path& path, uint64_t min_garbage_bytes)
    : context_tokens_(engine.context_tokens()),
      kv_shape_(engine.kv_shape()),
      file_(SessionFile::OpenOrCreate(path, IdentityOf(engine))),
      min_garbage_bytes_(min_garbage_bytes),
      compact_from_bytes_(min_garbage_bytes) {}

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
    notes.push_back(fmt::format("{}: {} restored, with the rows of {} of {}", file_.name(),
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
  std::ranges::move(Compact(), std::back_inserter(notes));
  return notes;
}

std::vector<std::string> SavedChat::Compact() {
  const bool must_forget = must_forget_;
  try {
    if (must_forget) file_.Compact();
    must_forget_ = false;
    if (must_forget || file_.CompactIfDue(compact_from_bytes_)) {
      compact_from_bytes_ = min_garbage_bytes_;
    }
    return {};
  } catch (const Error& error) {
    // What is only large not again after every answer: it would fill the disk each time.
    compact_from_bytes_ = file_.garbage_bytes() + file_.garbage_bytes() / 2;
    return {
        fmt::format("the conversation is saved, but its file {}: {}",
                    must_forget ? "still holds what was forgotten" : "could not be made smaller",
                    error.what())};
  }
}

void SavedChat::SaveAnew(const Conversation& conversation) {
  must_forget_ = true;
  Write(conversation);
  file_.Compact();
  must_forget_ = false;
}

void SavedChat::Write(const Conversation& conversation) {
  const Sequence& sequence = conversation.sequence();
  file_.Save(sequence.ids(), sequence.num_tokens(), conversation.Json(),
             [&](int64_t page, std::span<uint8_t> out) {
               sequence.CopyPage(page, out);
               ClearRows(kv_shape_, sequence.num_tokens() - page * kPageTokens, out);
             });
}

}  // namespace hillstar
