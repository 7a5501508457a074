//! The eBPF programs and their events.

use std::time::Duration;

use super::labels::{Hook, LossReason, Stream};
use super::{Metrics, lock, observe, risen, set_count, set_flag, set_time};
use crate::model::time::WallTime;

impl Metrics {
    /// A wanted program and the hook it hangs on; [`Hook::None`]: it could not be attached.
    pub fn set_program(&self, program: &str, hook: Hook) {
        let family = &self.shared.ebpf.program_attached;
        for it in Hook::ALL.iter().filter(|it| **it != hook) {
            family.remove(&[program, it.as_str()]);
        }
        let is_attached = !matches!(hook, Hook::None | Hook::StandIn);
        set_flag(family, &[program, hook.as_str()], is_attached);
    }

    /// The kernel's own statistics of a program: runs and their time since it was loaded.
    pub fn set_program_statistics(&self, program: &str, n_runs: u64, run_time: Duration) {
        let ebpf = &self.shared.ebpf;
        let more = self.risen(program, "runs", n_runs);
        ebpf.program_runs.with_label_values(&[program]).inc_by(more);
        let run_ns = u64::try_from(run_time.as_nanos()).unwrap_or(u64::MAX);
        let more = self.risen(program, "run_ns", run_ns);
        ebpf.program_run_seconds
            .with_label_values(&[program])
            .inc_by(Duration::from_nanos(more).as_secs_f64());
    }

    /// Counts a handled event; `age` is the time since the kernel made it.
    pub fn bpf_event(&self, stream: Stream, age: Duration) {
        let ebpf = &self.shared.ebpf;
        ebpf.events.with_label_values(&[stream.as_str()]).inc();
        observe(&ebpf.event_age, &[stream.as_str()], age);
    }

    /// The kernel's count of lost events, which it keeps since the maps were made. Returns how
    /// many are new since the last call; the first call tells of no time, so it returns 0.
    pub fn set_bpf_lost(
        &self,
        stream: Stream,
        reason: LossReason,
        n_lost: u64,
        at: WallTime,
    ) -> u64 {
        let ebpf = &self.shared.ebpf;
        let is_first = !lock(&self.shared.kernel_counts)
            .contains_key(&(stream.as_str().to_owned(), reason.as_str()));
        let more = self.risen(stream.as_str(), reason.as_str(), n_lost);
        ebpf.events_lost
            .with_label_values(&[stream.as_str(), reason.as_str()])
            .inc_by(more);
        if is_first || more == 0 {
            return 0;
        }
        set_time(&ebpf.last_loss, &[stream.as_str()], at);
        more
    }

    /// A look at a ring found this part of it filled, 0 to 1.
    pub fn ring_found(&self, stream: Stream, ratio: f64) {
        let mut rings = lock(&self.shared.rings);
        let highest = rings.entry(stream).or_default();
        *highest = highest.max(ratio);
    }

    /// The fullest that each ring was found since the last call.
    pub(super) fn show_rings(&self) {
        for (stream, ratio) in &mut *lock(&self.shared.rings) {
            let family = &self.shared.ebpf.ring_high_water;
            let gauge = family.with_label_values(&[stream.as_str()]);
            gauge.set(std::mem::take(ratio));
        }
    }

    pub fn set_map(&self, map: &'static str, n_entries: u64, capacity: u64) {
        set_count(&self.shared.ebpf.map_entries, &[map], n_entries);
        set_count(&self.shared.ebpf.map_capacity, &[map], capacity);
    }

    /// How far a counter of the kernel has risen since the last call; all of it when it began anew.
    fn risen(&self, object: &str, counter: &'static str, value: u64) -> u64 {
        let key = (object.to_owned(), counter);
        risen(lock(&self.shared.kernel_counts).insert(key, value), value)
    }
}
