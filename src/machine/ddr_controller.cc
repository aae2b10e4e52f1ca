#include "machine/ddr_controller.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace sluice::machine {

double DdrAccount::Efficiency() const {
  const uint64_t clocks = Clocks();
  return clocks == 0 ? 0 : double(read_data + write_data) / double(clocks);
}

bool DdrController::Queue::Holds(uint32_t block) const {
  return std::any_of(entries.begin(), entries.begin() + size,
                     [block](const Entry& entry) { return entry.block == block; });
}

void DdrController::Queue::UpdateBank(uint32_t bank) {
  const uint32_t bit = uint32_t{1} << bank;
  work_banks = in_bank[bank] != 0 ? work_banks | bit : work_banks & ~bit;
  const bool miss = in_bank[bank] != 0 && (in_bank[bank] & hits) == 0;
  miss_banks = miss ? miss_banks | bit : miss_banks & ~bit;
}

void DdrController::Queue::Add(const Entry& entry, bool hit) {
  const uint64_t bit = uint64_t{1} << size;
  entries[size++] = entry;
  in_bank[entry.bank] |= bit;
  if (hit) hits |= bit;
  UpdateBank(entry.bank);
}

void DdrController::Queue::Remove(uint32_t index) {
  const uint32_t bank = entries[index].bank;
  std::copy(entries.begin() + index + 1, entries.begin() + size, entries.begin() + index);
  --size;
  const uint64_t older = (uint64_t{1} << index) - 1;
  const auto close_up = [older](uint64_t mask) { return (mask & older) | (mask >> 1 & ~older); };
  hits = close_up(hits);
  for (uint64_t& mask : in_bank) mask = close_up(mask);
  UpdateBank(bank);
}

void DdrController::Queue::RowChanged(uint32_t bank, uint32_t row) {
  hits &= ~in_bank[bank];
  if (row != kNoRow) {
    for (uint64_t left = in_bank[bank]; left != 0; left &= left - 1) {
      const auto i = static_cast<uint32_t>(std::countr_zero(left));
      if (entries[i].row == row) hits |= uint64_t{1} << i;
    }
  }
  UpdateBank(bank);
}

DdrController::DdrController(const DdrTiming& timing, const SchedulerSpec& scheduler)
    : timing_(timing),
      scheduler_(scheduler),
      access_shift_(static_cast<uint32_t>(std::countr_zero(timing.AccessBytes()))),
      page_shift_(static_cast<uint32_t>(std::countr_zero(timing.PageBytes()))),
      bank_shift_(static_cast<uint32_t>(std::countr_zero(timing.banks))),
      refresh_due_(timing.refi) {
  SLUICE_CHECK(timing.banks <= kMaxBanks && scheduler.read_entries <= kMaxEntries &&
               scheduler.write_entries <= kMaxEntries);
  queues_[0].capacity = scheduler.read_entries;
  queues_[1].capacity = scheduler.write_entries;
  done_.reserve(kMaxEntries);
}

bool DdrController::Full(Direction direction) const {
  const Queue& queue = queues_[static_cast<uint32_t>(direction)];
  return queue.size == queue.capacity;
}

DdrController::Admission DdrController::Offer(Direction direction, uint64_t address, uint32_t tag) {
  const auto d = static_cast<uint32_t>(direction);
  Queue& queue = queues_[d];
  Queue& other = queues_[1 - d];
  const uint64_t size = uint64_t{timing_.PageBytes()} << (bank_shift_ + timing_.row_bits);
  address &= size - 1;
  const auto block = static_cast<uint32_t>(address >> access_shift_);
  if (other.Holds(block)) {
    if (!other.critical) {
      other.critical = true;
      other.served = 0;
    }
    wake_ = now_;
    ++account_.conflicts;
    return Admission::kConflict;
  }
  if (direction == Direction::kWrite && queue.Holds(block)) {
    ++account_.combined_writes;
    return Admission::kTaken;
  }
  if (queue.size == queue.capacity) return Admission::kFull;
  const auto bank = static_cast<uint32_t>(address >> page_shift_) & (timing_.banks - 1);
  const auto row = static_cast<uint32_t>(address >> (page_shift_ + bank_shift_));
  if (queue.size == 0) queue.waiting_since = now_;
  queue.Add({.arrived = now_, .block = block, .row = row, .tag = tag, .bank = bank},
            banks_[bank].row == row);
  wake_ = now_;
  return Admission::kTaken;
}

std::span<const DdrController::ReadDone> DdrController::Advance(uint64_t until) {
  done_.clear();
  while (now_ < until) {
    if (wake_ <= now_) wake_ = Step();
    const uint64_t next = std::min(wake_, until);
    Attribute(now_, next);
    now_ = next;
  }
  return done_;
}

uint64_t DdrController::CriticalAt(const Queue& queue) const {
  if (queue.size == 0) return kNever;
  return std::max(queue.waiting_since, queue.quiet_until) + scheduler_.starve_clocks;
}

void DdrController::ChooseDirection() {
  for (Queue& queue : queues_) {
    if (!queue.critical && now_ >= CriticalAt(queue)) {
      queue.critical = true;
      queue.served = 0;
    }
  }
  const Queue& current = queues_[direction_];
  const Queue& other = queues_[1 - direction_];
  if (current.size == 0 && other.size == 0) {
    direction_ = 0;
  } else if (current.size == 0 || (other.critical && !current.critical)) {
    direction_ = 1 - direction_;
  }
}

// Issues at most one command; returns the clock before which there is nothing more to issue.
uint64_t DdrController::Step() {
  if (now_ >= refresh_due_) return Refresh();
  ChooseDirection();
  Queue& queue = queues_[direction_];
  const Queue& other = queues_[1 - direction_];
  uint64_t wake = refresh_due_;
  if (queue.size == 0) return wake;
  if (!other.critical) wake = std::min(wake, CriticalAt(other));

  uint64_t servable = queue.hits;
  uint32_t row_banks = queue.miss_banks;
  const Entry& oldest = queue.entries[0];
  if ((queue.hits & 1) == 0 && now_ >= oldest.arrived + scheduler_.age_clocks) {
    servable &= ~queue.in_bank[oldest.bank];
    row_banks |= uint32_t{1} << oldest.bank;
  }
  while (servable != 0) {
    const auto index = static_cast<uint32_t>(std::countr_zero(servable));
    const uint32_t bank = queue.entries[index].bank;
    const uint64_t at = std::max(access_at_[direction_], banks_[bank].access_at);
    if (at <= now_) {
      Access(queue, index);
      return now_ + 1;
    }
    wake = std::min(wake, at);
    servable &= ~queue.in_bank[bank];
  }
  if (RowCommand(queue, row_banks, wake)) return now_ + 1;
  return wake;
}

uint64_t DdrController::Refresh() {
  uint64_t start = now_;
  for (uint32_t b = 0; b < timing_.banks; ++b) {
    const Bank& bank = banks_[b];
    if (bank.row != kNoRow) start = std::max(start, bank.precharge_at + timing_.rp);
    start = std::max(start, bank.activate_at);
  }
  refresh_end_ = start + timing_.rfc;
  for (uint32_t b = 0; b < timing_.banks; ++b) {
    if (banks_[b].row != kNoRow) {
      banks_[b].row = kNoRow;
      for (Queue& queue : queues_) queue.RowChanged(b, kNoRow);
    }
    banks_[b].activate_at = refresh_end_;
  }
  refresh_due_ += timing_.refi;
  ++account_.refreshes;
  return refresh_end_;
}

void DdrController::Access(Queue& queue, uint32_t index) {
  const Entry entry = queue.entries[index];
  Bank& bank = banks_[entry.bank];
  data_end_ = now_ + timing_.BurstClocks();
  data_direction_ = direction_;
  access_at_[direction_] = data_end_;
  if (direction_ == 0) {
    access_at_[1] = std::max(access_at_[1], now_ + timing_.read_to_write);
    bank.precharge_at = std::max(bank.precharge_at, now_ + timing_.read_to_precharge);
    ++account_.reads;
    done_.push_back({entry.tag, data_end_ + timing_.cl});
  } else {
    access_at_[0] = std::max(access_at_[0], now_ + timing_.write_to_read);
    bank.precharge_at = std::max(bank.precharge_at, now_ + timing_.write_to_precharge);
    ++account_.writes;
  }
  queue.Remove(index);
  queue.waiting_since = now_;
  if (queue.critical && (++queue.served >= scheduler_.run_accesses || queue.size == 0)) {
    queue.critical = false;
    queue.quiet_until = now_ + scheduler_.quiet_clocks;
  }
}

// Opens a row for the oldest of the queue's entries in `banks` (a mask) within the look-ahead, or
// precharges for it. If none is possible now, lowers `wake` to when the first will be.
bool DdrController::RowCommand(const Queue& queue, uint32_t banks, uint64_t& wake) {
  uint32_t best = kMaxBanks;
  uint32_t best_entry = scheduler_.row_lookahead;
  for (uint32_t left = banks; left != 0; left &= left - 1) {
    const auto b = static_cast<uint32_t>(std::countr_zero(left));
    const auto entry = static_cast<uint32_t>(std::countr_zero(queue.in_bank[b]));
    if (entry >= best_entry) continue;
    const Bank& bank = banks_[b];
    const uint64_t at =
        bank.row == kNoRow ? std::max(bank.activate_at, activate_at_) : bank.precharge_at;
    if (at <= now_) {
      best_entry = entry;
      best = b;
    } else {
      wake = std::min(wake, at);
    }
  }
  if (best == kMaxBanks) return false;
  if (banks_[best].row != kNoRow) {
    CloseRow(best);
  } else {
    OpenRow(best, queue.entries[best_entry].row);
  }
  return true;
}

void DdrController::OpenRow(uint32_t bank, uint32_t row) {
  Bank& opened = banks_[bank];
  opened.row = row;
  opened.access_at = now_ + timing_.rcd;
  opened.precharge_at = now_ + timing_.ras;
  opened.activate_at = now_ + timing_.rc;
  last_activates_[next_activate_] = now_ + timing_.faw;
  next_activate_ = (next_activate_ + 1) % 4;
  activate_at_ = std::max(now_ + timing_.rrd, last_activates_[next_activate_]);
  for (Queue& queue : queues_) queue.RowChanged(bank, row);
  ++account_.activates;
}

void DdrController::CloseRow(uint32_t bank) {
  Bank& closed = banks_[bank];
  closed.row = kNoRow;
  closed.activate_at = std::max(closed.activate_at, now_ + timing_.rp);
  for (Queue& queue : queues_) queue.RowChanged(bank, kNoRow);
  ++account_.precharges;
}

void DdrController::Attribute(uint64_t from, uint64_t to) {
  // The part of [from, to) before `end`, which is then left out.
  const auto take = [&from, to](uint64_t end) {
    const uint64_t part = end > from ? std::min(end, to) - from : 0;
    from += part;
    return part;
  };
  (data_direction_ == 0 ? account_.read_data : account_.write_data) += take(data_end_);
  account_.refresh += take(refresh_end_);
  if (queues_[0].size == 0 && queues_[1].size == 0) {
    account_.idle += take(to);
  } else {
    account_.turnaround += take(access_at_[direction_]);
    account_.row += take(to);
  }
}

}  // namespace sluice::machine
