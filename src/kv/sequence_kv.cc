#include "kv/sequence_kv.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "core/check.h"
#include "hillstar/error.h"

namespace hillstar {

uint64_t SequenceKv::NewVersion() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

int64_t SequenceKv::Adopt(std::span<const int32_t> ids, int64_t num_held) {
  if (!shares_) return num_held;
  KvCache::Chain chain = cache_.Adopt(ids);
  const int64_t full = int64_t(chain.pages.size()) * kPageTokens;
  const PrefixIndex::NodeId last = chain.nodes.empty() ? PrefixIndex::kRoot : chain.nodes.back();
  const PrefixIndex::Partial partial = cache_.FindPartial(last, ids.subspan(size_t(full)));
  if (full + partial.num_tokens <= num_held) {
    cache_.ReleaseAll(chain.pages);
    return num_held;
  }
  Truncate(0);
  pages_ = std::move(chain.pages);
  nodes_ = std::move(chain.nodes);
  version_ = NewVersion();
  if (partial.num_tokens == 0 || !cache_.CanCopy(partial.page)) return full;
  try {
    pages_.push_back(cache_.TakeCopy(partial.page));
    version_ = NewVersion();
  } catch (const Error&) {
    return full;  // the system has no memory; these rows can be computed
  }
  return full + partial.num_tokens;
}

// Whoever holds a page of the index holds those before it, so shared pages come first.
int64_t SequenceKv::num_shared() const {
  const auto end = std::ranges::partition_point(
      pages_, [&](PageId page) { return cache_.num_holders(page) > 1; });
  return end - pages_.begin();
}

void SequenceKv::Prepare(int64_t first, int64_t end) {
  CHECK(first <= num_pages() * kPageTokens);
  const int64_t first_page = first / kPageTokens;
  CHECK(int64_t(nodes_.size()) <= first_page);
  for (int64_t i = first_page; i < std::min(num_pages(), KvShape::PagesOf(end)); ++i) {
    PageId& page = pages_[size_t(i)];
    if (cache_.IsOwn(page) || cache_.MakeOwn(page)) continue;
    const PageId copy = cache_.TakeCopy(page);
    cache_.Release(page);
    page = copy;
    version_ = NewVersion();
  }
  while (num_pages() < KvShape::PagesOf(end)) {
    pages_.push_back(cache_.Take());
    version_ = NewVersion();
  }
}

void SequenceKv::Commit(std::span<const int32_t> ids) {
  if (!shares_) return;
  for (size_t i = nodes_.size(); int64_t(i + 1) * kPageTokens <= int64_t(ids.size()); ++i) {
    const PrefixIndex::NodeId parent = nodes_.empty() ? PrefixIndex::kRoot : nodes_.back();
    const auto tokens = ids.subspan(i * size_t(kPageTokens), size_t(kPageTokens));
    const KvCache::Published published = cache_.Publish(parent, tokens, pages_[i]);
    if (pages_[i] != published.page) version_ = NewVersion();
    pages_[i] = published.page;
    nodes_.push_back(published.node);
  }
}

void SequenceKv::Truncate(int64_t num_tokens) {
  const size_t kept = std::min(pages_.size(), size_t(KvShape::PagesOf(num_tokens)));
  if (kept < pages_.size()) version_ = NewVersion();
  cache_.ReleaseAll(std::span(pages_).subspan(kept));
  pages_.resize(kept);
  nodes_.resize(std::min(nodes_.size(), size_t(num_tokens / kPageTokens)));
}

void SequenceKv::ReadPage(int64_t i, std::span<uint8_t> out) const {
  const PagePool& pool = cache_.pool();
  const PageId page = pages_[size_t(i)];
  CHECK(int64_t(out.size()) == pool.shape().page_bytes());
  const std::array spans = {pool.latent_bytes(page), pool.index_bytes(page)};
  pool.memory().Read(std::span(spans).first(spans[1].size > 0 ? 2 : 1), out.data());
}

void SequenceKv::WritePages(int64_t first, std::span<const uint8_t> packed) {
  const PagePool& pool = cache_.pool();
  const auto page_bytes = size_t(pool.shape().page_bytes());
  CHECK(packed.size() % page_bytes == 0);
  const auto num_pages = int64_t(packed.size() / page_bytes);
  CHECK(first >= 0 && first + num_pages <= this->num_pages());
  std::vector<DeviceSpan> spans;
  for (int64_t i = first; i < first + num_pages; ++i) {
    const PageId page = pages_[size_t(i)];
    CHECK(cache_.IsOwn(page));
    spans.push_back(pool.latent_bytes(page));
    if (pool.shape().index_page_bytes() > 0) spans.push_back(pool.index_bytes(page));
  }
  pool.memory().Write(spans, packed.data());
}

}  // namespace hillstar
