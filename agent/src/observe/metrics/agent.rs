//! The agent itself: how it was built and is run, its loop, its sources, its process and its state.

use std::time::Duration;

use super::labels::{
    EndedKind, FieldHandling, ObjectKind, Phase, RestoreResult, SaveResult, Source, SourceFault,
    Trigger,
};
use super::{Metrics, lock, observe, set_count, set_flag, set_or_leave_out, set_time};
use crate::model::agent_process::ProcessUsage;
use crate::model::time::WallTime;

impl Metrics {
    /// `revision` is the commit, `target` the target triple of the build.
    pub fn set_build(&self, version: &str, revision: &str, target: &str) {
        let labels = [version, revision, target];
        self.shared
            .agent
            .build_info
            .with_label_values(&labels)
            .set(1);
    }

    /// `mode`, cgroup version, driver and whether nothing is written, in place of what was so before.
    pub fn set_mode(&self, mode: &str, cgroup: &str, driver: &str, is_dry_run: bool) {
        let labels = [
            mode,
            cgroup,
            driver,
            if is_dry_run { "true" } else { "false" },
        ];
        let family = &self.shared.agent.mode_info;
        family.reset();
        family.with_label_values(&labels).set(1);
    }

    pub fn set_feature(&self, feature: &'static str, is_enabled: bool) {
        set_flag(&self.shared.agent.feature_enabled, &[feature], is_enabled);
    }

    pub fn set_kernel_feature(&self, feature: &'static str, is_available: bool) {
        let family = &self.shared.agent.kernel_feature_available;
        set_flag(family, &[feature], is_available);
    }

    pub fn set_ready(&self, is_ready: bool) {
        set_flag(&self.shared.agent.ready, &[], is_ready);
    }

    pub fn set_objects(&self, kind: ObjectKind, n: usize) {
        set_count(&self.shared.agent.objects, &[kind.as_str()], n as u64);
    }

    pub fn loop_tick(&self, trigger: Trigger) {
        let family = &self.shared.agent.loop_ticks;
        family.with_label_values(&[trigger.as_str()]).inc();
    }

    pub fn loop_phase(&self, phase: Phase, duration: Duration) {
        observe(
            &self.shared.agent.loop_duration,
            &[phase.as_str()],
            duration,
        );
    }

    pub fn loop_succeeded(&self, at: WallTime) {
        set_time(&self.shared.agent.loop_last_success, &[], at);
    }

    /// A source was read; `now` is boottime.
    pub fn source_read(&self, source: Source, now: Duration) {
        lock(&self.shared.readings).insert(source, now);
    }

    /// Shows how old the newest reading of each source is; a source that was never read has none.
    pub fn set_source_ages(&self, now: Duration) {
        let family = &self.shared.agent.source_age;
        for (source, at) in &*lock(&self.shared.readings) {
            let age = now.saturating_sub(*at).as_secs_f64();
            family.with_label_values(&[source.as_str()]).set(age);
        }
    }

    pub fn source_error(&self, source: Source, fault: SourceFault) {
        let family = &self.shared.agent.source_errors;
        let labels = [source.as_str(), fault.as_str()];
        family.with_label_values(&labels).inc();
    }

    /// As [`Metrics::source_error`], `n` of them.
    pub fn source_errors(&self, source: Source, fault: SourceFault, n: u64) {
        let family = &self.shared.agent.source_errors;
        let labels = [source.as_str(), fault.as_str()];
        family.with_label_values(&labels).inc_by(n);
    }

    /// Counters of a source that fell, and are shown as they were before.
    pub fn source_regressed(&self, source: Source, n: u64) {
        let family = &self.shared.agent.source_regressions;
        family.with_label_values(&[source.as_str()]).inc_by(n);
    }

    /// Ended pods or containers that are no longer shown although their time is not over.
    pub fn ended_left_out(&self, kind: EndedKind, n: u64) {
        let family = &self.shared.agent.ended_left_out;
        family.with_label_values(&[kind.as_str()]).inc_by(n);
    }

    /// `started_at`: start of the agent.
    pub fn set_process_usage(&self, usage: &ProcessUsage, started_at: WallTime) {
        let family = &self.shared.process;
        if let Some(cpu) = usage.cpu {
            let counter = family.cpu.with_label_values::<&str>(&[]);
            counter.inc_by((cpu.as_secs_f64() - counter.get()).max(0.0));
        }
        set_time(&family.start_time, &[], started_at);
        for (gauge, value) in [
            (&family.open_fds, usage.open_fds),
            (&family.max_fds, usage.max_fds),
            (&family.virtual_memory, usage.virtual_bytes),
            (&family.resident_memory, usage.resident_bytes),
            (&family.threads, usage.threads),
            (
                &self.shared.agent.capabilities_effective,
                usage.n_capabilities.map(u64::from),
            ),
        ] {
            set_or_leave_out(gauge, &[], value);
        }
    }

    pub fn state_saved(&self, result: SaveResult, duration: Duration) {
        let state = &self.shared.state;
        state.saves.with_label_values(&[result.as_str()]).inc();
        observe(&state.save_duration, &[], duration);
    }

    pub fn state_restored(&self, result: RestoreResult) {
        let family = &self.shared.state.restores;
        family.with_label_values(&[result.as_str()]).inc();
    }

    pub fn set_kubelet_config_fields(&self, handling: FieldHandling, n: usize) {
        let family = &self.shared.state.kubelet_config_fields;
        set_count(family, &[handling.as_str()], n as u64);
    }

    /// What the recording of decisions has come to. `oldest`: when the oldest file was begun.
    pub fn set_recording(&self, n_bytes: u64, n_dropped: u64, oldest: Option<WallTime>) {
        let state = &self.shared.state;
        for (family, n) in [
            (&state.record_bytes, n_bytes),
            (&state.record_dropped, n_dropped),
        ] {
            let counter = family.with_label_values::<&str>(&[]);
            counter.inc_by(n.saturating_sub(counter.get()));
        }
        match oldest {
            Some(at) => set_time(&state.record_oldest, &[], at),
            None => state.record_oldest.remove(&[]),
        }
    }
}
