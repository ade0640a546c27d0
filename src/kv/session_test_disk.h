// For tests and the fuzzer: a disk in memory that fails on demand and, when its power is cut, keeps
// an arbitrary part of what was not synced.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "hillstar/error.h"
#include "kv/session_storage.h"

namespace hillstar {

// Thrown by every operation once the power is cut.
struct PowerCut {};

enum class Fault {
  kNone,
  kShort,     // a transfer moves a part; not an error
  kNoSpace,   // a write moves a part and the next one fails; a sync or a rename fails
  kIo,        // fails; a sync keeps a part and loses the rest of what was written
  kPowerCut,  // a write moves a part, then nothing works any more
};

// Drives write sectors of 512 bytes at least; a test is harder with the smallest.
inline constexpr uint64_t kTestSectorBytes = 512;

class TestDisk {
 public:
  explicit TestDisk(uint64_t seed = 0) : random_(seed) {}

  // The next `count` operations from the `at`th on (from 0, counted from now) fail like this.
  void FailAt(int64_t at, Fault fault, int64_t count = 1) {
    num_operations_ = 0;
    fail_at_ = at;
    fault_ = fault;
    fail_count_ = count;
  }
  int64_t num_operations() const { return num_operations_; }
  bool fault_happened() const { return fault_happened_; }
  bool power_is_cut() const { return power_is_cut_; }
  // Writes past it get ENOSPC, over all files.
  void set_capacity(uint64_t num_bytes) { capacity_ = num_bytes; }

  // Reads that touch these bytes of any file get EIO.
  void SetUnreadable(uint64_t begin, uint64_t end) {
    unreadable_begin_ = begin;
    unreadable_end_ = end;
  }

  // Every file goes back to what the drive has: all that was synced and an arbitrary part of the
  // rest, sectors in any order, one of them torn. Handles from before are dead.
  void RestartAfterPowerCut() {
    for (auto& [name, file] : names_) Survive(file.get());
    for (auto& [name, file] : durable_names_) Survive(file.get());
    // The folder's log is written in order.
    const size_t survivors = random_() % (pending_names_.size() + 1);
    for (size_t i = 0; i < survivors; ++i) pending_names_[i](&durable_names_);
    pending_names_.clear();
    names_ = durable_names_;
    for (auto& [name, file] : names_) file->cached = file->durable;
    ++generation_;
    power_is_cut_ = false;
    FailAt(-1, Fault::kNone);
  }

  // The file as a process sees it; none if there is none.
  std::string* Content(const std::string& name) {
    const auto found = names_.find(name);
    return found == names_.end() ? nullptr : &found->second->cached;
  }
  void Put(const std::string& name, std::string content) {
    auto file = std::make_shared<Node>();
    file->cached = file->durable = std::move(content);
    names_[name] = durable_names_[name] = file;
  }
  bool Exists(const std::string& name) const { return names_.count(name) > 0; }

  std::unique_ptr<SessionPlace> Place(const std::string& name);

 private:
  friend class TestStorage;
  friend class TestPlace;

  struct Operation {
    uint64_t offset = 0;
    std::string bytes;
    bool is_resize = false;  // to `offset`
  };
  struct Node {
    std::string cached, durable;
    std::vector<Operation> pending;
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  static void Apply(const Operation& operation, std::string* content) {
    if (operation.is_resize) {
      content->resize(operation.offset, '\0');
      return;
    }
    const uint64_t end = operation.offset + operation.bytes.size();
    if (content->size() < end) content->resize(end, '\0');
    std::memcpy(content->data() + operation.offset, operation.bytes.data(), operation.bytes.size());
  }

  // Each sector by itself reaches the drive or not.
  void Survive(Node* file) {
    static constexpr uint32_t kChances[] = {0, 1, 50, 99, 100};
    const uint32_t chance = kChances[random_() % 5];
    for (const Operation& operation : std::exchange(file->pending, {})) {
      if (operation.is_resize) {
        if (random_() % 100 < chance) Apply(operation, &file->durable);
        continue;
      }
      for (uint64_t at = 0; at < operation.bytes.size();) {
        const uint64_t offset = operation.offset + at;
        const uint64_t n =
            std::min(kTestSectorBytes - offset % kTestSectorBytes, operation.bytes.size() - at);
        uint64_t kept = random_() % 100 < chance ? n : 0;
        if (random_() % 64 == 0) kept = random_() % (n + 1);  // torn
        if (kept) Apply({offset, operation.bytes.substr(at, kept), false}, &file->durable);
        at += n;
      }
    }
  }

  // The fault that this operation meets. A cut takes effect in the caller.
  Fault Next() {
    if (power_is_cut_) throw PowerCut{};
    const int64_t number = num_operations_++;
    if (fault_ == Fault::kNone || fail_at_ < 0 || number < fail_at_ ||
        number >= fail_at_ + fail_count_) {
      return Fault::kNone;
    }
    fault_happened_ = true;
    if (fault_ == Fault::kPowerCut) power_is_cut_ = true;
    return fault_;
  }
  // For operations without transfer: all or nothing, but a cut may come before or after.
  void FailOr(const std::string& what, const auto& act) {
    const Fault fault = Next();
    if (fault == Fault::kPowerCut) {
      if (random_() % 2) act();
      throw PowerCut{};
    }
    if (fault == Fault::kNoSpace || fault == Fault::kIo) {
      throw Error(ErrorCode::kIo, "cannot " + what + ": injected");
    }
    act();
  }

  uint64_t UsedBytes() const {
    uint64_t used = 0;
    for (const auto& [name, file] : names_) used += file->cached.size();
    return used;
  }

  std::mt19937_64 random_;
  Names names_, durable_names_;
  std::vector<std::function<void(Names*)>> pending_names_;
  int64_t num_operations_ = 0, fail_at_ = -1, fail_count_ = 0;
  Fault fault_ = Fault::kNone;
  bool fault_happened_ = false, power_is_cut_ = false;
  bool no_space_next_ = false;
  uint64_t capacity_ = ~uint64_t{0};
  uint64_t unreadable_begin_ = 0, unreadable_end_ = 0;
  int generation_ = 0;
};

class TestStorage final : public SessionStorage {
 public:
  TestStorage(TestDisk* disk, std::shared_ptr<TestDisk::Node> file, std::string partial_name,
              std::string final_name)
      : disk_(disk),
        file_(std::move(file)),
        partial_name_(std::move(partial_name)),
        final_name_(std::move(final_name)),
        generation_(disk->generation_) {}

  uint64_t size() const override { return file_->cached.size(); }

  ssize_t ReadSome(void* out, size_t num_bytes, uint64_t offset) const override {
    RequireLive();
    const Fault fault = disk_->Next();
    if (fault == Fault::kPowerCut) throw PowerCut{};
    const bool unreadable =
        offset < disk_->unreadable_end_ && offset + num_bytes > disk_->unreadable_begin_;
    if (fault == Fault::kIo || unreadable) {
      errno = EIO;
      return -1;
    }
    const std::string& content = file_->cached;
    if (offset >= content.size()) return 0;
    size_t n = std::min(num_bytes, size_t(content.size() - offset));
    if (fault == Fault::kShort) n = (n + 1) / 2;
    std::memcpy(out, content.data() + offset, n);
    return ssize_t(n);
  }

  ssize_t WriteSome(const void* data, size_t num_bytes, uint64_t offset) override {
    RequireLive();
    if (std::exchange(disk_->no_space_next_, false)) {
      errno = ENOSPC;
      return -1;
    }
    const Fault fault = disk_->Next();
    if (fault == Fault::kIo) {
      errno = EIO;
      return -1;
    }
    size_t n = num_bytes;
    if (fault != Fault::kNone) n = size_t(disk_->random_() % (num_bytes + 1));
    if (fault == Fault::kShort) n = std::max(n, size_t{1});
    if (fault == Fault::kNoSpace && n > 0) disk_->no_space_next_ = true;
    n = std::min(n, Room(offset, num_bytes));
    if (n > 0) Do({offset, std::string(static_cast<const char*>(data), n), false});
    if (fault == Fault::kPowerCut) throw PowerCut{};
    if (n > 0 || num_bytes == 0) return ssize_t(n);
    errno = ENOSPC;
    return -1;
  }

  void Resize(uint64_t num_bytes) override {
    RequireLive();
    disk_->FailOr("resize", [&] { Do({num_bytes, "", true}); });
  }

  void Sync() override {
    RequireLive();
    const Fault fault = disk_->Next();
    if (fault == Fault::kNone || fault == Fault::kShort) {
      for (const auto& operation : std::exchange(file_->pending, {})) {
        TestDisk::Apply(operation, &file_->durable);
      }
      return;
    }
    if (fault == Fault::kPowerCut) throw PowerCut{};
    // As Linux does it: what could not be written counts as clean from now on, and stays in memory.
    disk_->Survive(file_.get());
    throw Error(ErrorCode::kIo, "cannot sync: injected");
  }

  NameLeadsTo name_leads_to() const override {
    const auto found = disk_->names_.find(final_name_);
    if (found == disk_->names_.end()) return NameLeadsTo::kNothing;
    return found->second == file_ ? NameLeadsTo::kThis : NameLeadsTo::kOther;
  }

  void TakeName() override {
    RequireLive();
    disk_->FailOr("rename", [&] {
      const auto rename = [from = partial_name_, to = final_name_,
                           file = file_](TestDisk::Names* names) {
        (*names)[to] = file;
        names->erase(from);
      };
      rename(&disk_->names_);
      disk_->pending_names_.push_back(rename);
    });
  }

 private:
  void RequireLive() const {
    if (disk_->power_is_cut_ || generation_ != disk_->generation_) throw PowerCut{};
  }
  void Do(TestDisk::Operation operation) {
    TestDisk::Apply(operation, &file_->cached);
    file_->pending.push_back(std::move(operation));
  }
  size_t Room(uint64_t offset, size_t num_bytes) const {
    const uint64_t used = disk_->UsedBytes(), size = file_->cached.size();
    const uint64_t free = disk_->capacity_ > used ? disk_->capacity_ - used : 0;
    const uint64_t inside = size > offset ? size - offset : 0;
    return size_t(std::min<uint64_t>(num_bytes, inside + free));
  }

  TestDisk* disk_;
  std::shared_ptr<TestDisk::Node> file_;
  std::string partial_name_, final_name_;
  int generation_;
};

class TestPlace final : public SessionPlace {
 public:
  TestPlace(TestDisk* disk, std::string name)
      : disk_(disk), name_(std::move(name)), partial_name_(name_ + ".partial") {}

  const std::string& name() const override { return name_; }

  std::unique_ptr<SessionStorage> Open() override {
    std::unique_ptr<SessionStorage> storage;
    disk_->FailOr("open", [&] {
      const auto found = disk_->names_.find(name_);
      if (found == disk_->names_.end()) throw Error(ErrorCode::kNotFound, "there is no " + name_);
      storage = std::make_unique<TestStorage>(disk_, found->second, partial_name_, name_);
    });
    return storage;
  }
  std::unique_ptr<const SessionStorage> OpenToRead() override { return Open(); }

  std::unique_ptr<SessionStorage> CreatePartial() override {
    std::unique_ptr<SessionStorage> storage;
    disk_->FailOr("create", [&] {
      const auto file = std::make_shared<TestDisk::Node>();
      const auto add = [name = partial_name_, file](TestDisk::Names* names) {
        (*names)[name] = file;
      };
      add(&disk_->names_);
      disk_->pending_names_.push_back(add);
      storage = std::make_unique<TestStorage>(disk_, file, partial_name_, name_);
    });
    return storage;
  }

  void RemovePartial() override {
    try {
      disk_->FailOr("remove", [&] {
        const auto remove = [name = partial_name_](TestDisk::Names* names) { names->erase(name); };
        remove(&disk_->names_);
        disk_->pending_names_.push_back(remove);
      });
    } catch (const Error&) {
    }
  }

  void SyncFolder() override {
    disk_->FailOr("sync the folder", [&] {
      for (const auto& apply : std::exchange(disk_->pending_names_, {})) {
        apply(&disk_->durable_names_);
      }
    });
  }

 private:
  TestDisk* disk_;
  std::string name_, partial_name_;
};

inline std::unique_ptr<SessionPlace> TestDisk::Place(const std::string& name) {
  return std::make_unique<TestPlace>(this, name);
}

}  // namespace hillstar
