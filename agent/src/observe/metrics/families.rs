//! One handle for each row of the table, by area.

use super::histogram::HistogramVec;
use super::registry::Builder;
use super::series::{CounterVec, GaugeVec, IntCounterVec, IntGaugeVec};

pub(super) struct AgentFamilies {
    pub(super) build_info: IntGaugeVec,
    pub(super) mode_info: IntGaugeVec,
    pub(super) feature_enabled: IntGaugeVec,
    pub(super) kernel_feature_available: IntGaugeVec,
    pub(super) ready: IntGaugeVec,
    pub(super) capabilities_effective: IntGaugeVec,
    pub(super) objects: IntGaugeVec,
    pub(super) loop_ticks: IntCounterVec,
    pub(super) loop_duration: HistogramVec,
    pub(super) loop_last_success: GaugeVec,
    pub(super) source_age: GaugeVec,
    pub(super) source_errors: IntCounterVec,
    pub(super) source_regressions: IntCounterVec,
    pub(super) ended_left_out: IntCounterVec,
    pub(super) scrape_duration: HistogramVec,
    pub(super) scrape_series: IntGaugeVec,
    pub(super) scrape_bytes: IntGaugeVec,
}

impl AgentFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            build_info: build.gauge("ballast_build_info"),
            mode_info: build.gauge("ballast_mode_info"),
            feature_enabled: build.gauge("ballast_feature_enabled"),
            kernel_feature_available: build.gauge("ballast_kernel_feature_available"),
            ready: build.gauge("ballast_ready"),
            capabilities_effective: build.gauge("ballast_capabilities_effective"),
            objects: build.gauge("ballast_objects"),
            loop_ticks: build.counter("ballast_loop_ticks_total"),
            loop_duration: build.histogram("ballast_loop_duration_seconds"),
            loop_last_success: build.float_gauge("ballast_loop_last_success_timestamp_seconds"),
            source_age: build.float_gauge("ballast_source_age_seconds"),
            source_errors: build.counter("ballast_source_errors_total"),
            source_regressions: build.counter("ballast_source_regressions_total"),
            ended_left_out: build.counter("ballast_ended_left_out_total"),
            scrape_duration: build.histogram("ballast_scrape_duration_seconds"),
            scrape_series: build.gauge("ballast_scrape_series"),
            scrape_bytes: build.gauge("ballast_scrape_bytes"),
        }
    }
}

pub(super) struct ProcessFamilies {
    pub(super) cpu: CounterVec,
    pub(super) open_fds: IntGaugeVec,
    pub(super) max_fds: IntGaugeVec,
    pub(super) virtual_memory: IntGaugeVec,
    pub(super) resident_memory: IntGaugeVec,
    pub(super) start_time: GaugeVec,
    pub(super) threads: IntGaugeVec,
    pub(super) forks: IntCounterVec,
    pub(super) execs: IntCounterVec,
    pub(super) exits: IntCounterVec,
    pub(super) limit_hits: IntCounterVec,
}

impl ProcessFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            cpu: build.seconds_counter("process_cpu_seconds_total"),
            open_fds: build.gauge("process_open_fds"),
            max_fds: build.gauge("process_max_fds"),
            virtual_memory: build.gauge("process_virtual_memory_bytes"),
            resident_memory: build.gauge("process_resident_memory_bytes"),
            start_time: build.float_gauge("process_start_time_seconds"),
            threads: build.gauge("process_threads"),
            forks: build.counter("ballast_process_forks_total"),
            execs: build.counter("ballast_process_execs_total"),
            exits: build.counter("ballast_process_exits_total"),
            limit_hits: build.counter("ballast_pids_limit_hits_total"),
        }
    }
}

pub(super) struct OomFamilies {
    pub(super) kills: IntCounterVec,
    pub(super) child_kills: IntCounterVec,
    pub(super) last_kill: GaugeVec,
    pub(super) last_child_kill: GaugeVec,
    pub(super) workload_kills: IntCounterVec,
    pub(super) scope_kills: IntCounterVec,
    pub(super) host_kills: IntCounterVec,
    pub(super) last_node_kill: GaugeVec,
    pub(super) victim_bytes: HistogramVec,
    pub(super) attribution: IntCounterVec,
    pub(super) last_unattributed: GaugeVec,
    pub(super) detection: HistogramVec,
    pub(super) missed: IntCounterVec,
    pub(super) records: IntCounterVec,
    pub(super) group_kills: IntCounterVec,
}

impl OomFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            kills: build.counter("ballast_oom_kills_total"),
            child_kills: build.counter("ballast_oom_child_kills_total"),
            last_kill: build.float_gauge("ballast_oom_last_kill_timestamp_seconds"),
            last_child_kill: build.float_gauge("ballast_oom_last_child_kill_timestamp_seconds"),
            workload_kills: build.counter("ballast_oom_workload_kills_total"),
            scope_kills: build.counter("ballast_oom_scope_kills_total"),
            host_kills: build.counter("ballast_oom_host_kills_total"),
            last_node_kill: build.float_gauge("ballast_oom_last_node_kill_timestamp_seconds"),
            victim_bytes: build.histogram("ballast_oom_victim_bytes"),
            attribution: build.counter("ballast_oom_attribution_total"),
            last_unattributed: build.float_gauge("ballast_oom_last_unattributed_timestamp_seconds"),
            detection: build.histogram("ballast_oom_detection_seconds"),
            missed: build.counter("ballast_oom_missed_kills_total"),
            records: build.counter("ballast_oom_records_total"),
            group_kills: build.counter("ballast_oom_group_kills_total"),
        }
    }
}

pub(super) struct ReconcileFamilies {
    pub(super) cgroup_writes: IntCounterVec,
    pub(super) cgroup_op_duration: HistogramVec,
    pub(super) drift: IntCounterVec,
    pub(super) drift_unresolved: IntGaugeVec,
    pub(super) yields: IntCounterVec,
    pub(super) last_yield: GaugeVec,
    pub(super) lag: HistogramVec,
    pub(super) cgroups: IntGaugeVec,
    pub(super) cgroups_dying: IntGaugeVec,
    pub(super) unknown_cgroups: IntGaugeVec,
    pub(super) escaped_containers: IntGaugeVec,
}

impl ReconcileFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            cgroup_writes: build.counter("ballast_cgroup_writes_total"),
            cgroup_op_duration: build.histogram("ballast_cgroup_op_duration_seconds"),
            drift: build.counter("ballast_reconcile_drift_total"),
            drift_unresolved: build.gauge("ballast_reconcile_drift_unresolved"),
            yields: build.counter("ballast_reconcile_yields_total"),
            last_yield: build.float_gauge("ballast_reconcile_last_yield_timestamp_seconds"),
            lag: build.histogram("ballast_reconcile_lag_seconds"),
            cgroups: build.gauge("ballast_cgroups"),
            cgroups_dying: build.gauge("ballast_cgroups_dying"),
            unknown_cgroups: build.gauge("ballast_unknown_cgroups"),
            escaped_containers: build.gauge("ballast_escaped_containers"),
        }
    }
}

pub(super) struct PlacementFamilies {
    pub(super) admissions: IntCounterVec,
    pub(super) last_refusal: GaugeVec,
    pub(super) duration: HistogramVec,
    pub(super) exclusive_cpus: IntGaugeVec,
    pub(super) pool_cpus: IntGaugeVec,
    pub(super) free_cpus: IntGaugeVec,
    pub(super) free_bytes: IntGaugeVec,
    pub(super) fragmentation: GaugeVec,
    pub(super) candidates: HistogramVec,
    pub(super) misaligned: IntGaugeVec,
    pub(super) remote_memory: GaugeVec,
    pub(super) moves: IntCounterVec,
}

impl PlacementFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            admissions: build.counter("ballast_placement_admissions_total"),
            last_refusal: build.float_gauge("ballast_placement_last_refusal_timestamp_seconds"),
            duration: build.histogram("ballast_placement_duration_seconds"),
            exclusive_cpus: build.gauge("ballast_placement_exclusive_cpus"),
            pool_cpus: build.gauge("ballast_placement_pool_cpus"),
            free_cpus: build.gauge("ballast_placement_free_cpus"),
            free_bytes: build.gauge("ballast_placement_free_bytes"),
            fragmentation: build.float_gauge("ballast_placement_fragmentation_ratio"),
            candidates: build.histogram("ballast_placement_candidates"),
            misaligned: build.gauge("ballast_placement_misaligned_containers"),
            remote_memory: build.float_gauge("ballast_placement_remote_memory_ratio"),
            moves: build.counter("ballast_placement_moves_total"),
        }
    }
}

pub(super) struct MemoryFamilies {
    pub(super) limit_hits: IntCounterVec,
    pub(super) peak: IntGaugeVec,
    pub(super) reclaimable: IntGaugeVec,
    pub(super) time_to_limit: GaugeVec,
    pub(super) protection: IntGaugeVec,
    pub(super) relaxed: IntGaugeVec,
    pub(super) reclaimed: IntCounterVec,
    pub(super) available: IntGaugeVec,
    pub(super) allocatable: GaugeVec,
}

impl MemoryFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            limit_hits: build.counter("ballast_memory_limit_hits_total"),
            peak: build.gauge("ballast_memory_peak_bytes"),
            reclaimable: build.gauge("ballast_memory_reclaimable_bytes"),
            time_to_limit: build.float_gauge("ballast_memory_time_to_limit_seconds"),
            protection: build.gauge("ballast_memory_protection_bytes"),
            relaxed: build.gauge("ballast_memory_relaxed"),
            reclaimed: build.counter("ballast_memory_reclaimed_bytes_total"),
            available: build.gauge("ballast_node_memory_available_bytes"),
            allocatable: build.float_gauge("ballast_node_allocatable"),
        }
    }
}

pub(super) struct PressureFamilies {
    pub(super) stall: CounterVec,
    pub(super) ratio: GaugeVec,
    pub(super) episodes: IntCounterVec,
    pub(super) episode: HistogramVec,
    pub(super) wakeups: IntCounterVec,
}

impl PressureFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            stall: build.seconds_counter("ballast_pressure_stall_seconds_total"),
            ratio: build.float_gauge("ballast_pressure_stall_ratio"),
            episodes: build.counter("ballast_pressure_episodes_total"),
            episode: build.histogram("ballast_pressure_episode_seconds"),
            wakeups: build.counter("ballast_pressure_wakeups_total"),
        }
    }
}

pub(super) struct EvictionFamilies {
    pub(super) headroom: GaugeVec,
    pub(super) active: IntGaugeVec,
    pub(super) signal_age: GaugeVec,
    pub(super) actions: IntCounterVec,
    pub(super) pods: IntCounterVec,
    pub(super) returned: IntCounterVec,
    pub(super) last: GaugeVec,
    pub(super) blocked: IntCounterVec,
    pub(super) last_blocked: GaugeVec,
    pub(super) expected: IntCounterVec,
    pub(super) freed: IntCounterVec,
    pub(super) reaction: HistogramVec,
    /// Under the name kubelet had, and the one it has.
    pub(super) kubelet_evictions: [IntCounterVec; 2],
    pub(super) kubelet_preemptions: IntCounterVec,
    pub(super) kubelet_stats_age: HistogramVec,
}

impl EvictionFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            headroom: build.float_gauge("ballast_eviction_headroom_ratio"),
            active: build.gauge("ballast_eviction_active"),
            signal_age: build.float_gauge("ballast_eviction_signal_age_seconds"),
            actions: build.counter("ballast_eviction_actions_total"),
            pods: build.counter("ballast_eviction_pods_total"),
            returned: build.counter("ballast_eviction_returned_pods_total"),
            last: build.float_gauge("ballast_eviction_last_timestamp_seconds"),
            blocked: build.counter("ballast_eviction_blocked_total"),
            last_blocked: build.float_gauge("ballast_eviction_last_blocked_timestamp_seconds"),
            expected: build.counter("ballast_eviction_expected_bytes_total"),
            freed: build.counter("ballast_eviction_freed_bytes_total"),
            reaction: build.histogram("ballast_eviction_reaction_seconds"),
            kubelet_evictions: ["kubelet_evictions", "kubelet_evictions_total"]
                .map(|name| build.counter(name)),
            kubelet_preemptions: build.counter("kubelet_preemptions"),
            kubelet_stats_age: build.histogram("kubelet_eviction_stats_age_seconds"),
        }
    }
}

pub(super) struct EbpfFamilies {
    pub(super) program_attached: IntGaugeVec,
    pub(super) program_runs: IntCounterVec,
    pub(super) program_run_seconds: CounterVec,
    pub(super) events: IntCounterVec,
    pub(super) events_lost: IntCounterVec,
    pub(super) last_loss: GaugeVec,
    pub(super) event_age: HistogramVec,
    pub(super) map_entries: IntGaugeVec,
    pub(super) map_capacity: IntGaugeVec,
    pub(super) ring_high_water: GaugeVec,
}

impl EbpfFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            program_attached: build.gauge("ballast_bpf_program_attached"),
            program_runs: build.counter("ballast_bpf_program_runs_total"),
            program_run_seconds: build.seconds_counter("ballast_bpf_program_run_seconds_total"),
            events: build.counter("ballast_bpf_events_total"),
            events_lost: build.counter("ballast_bpf_events_lost_total"),
            last_loss: build.float_gauge("ballast_bpf_last_loss_timestamp_seconds"),
            event_age: build.histogram("ballast_bpf_event_age_seconds"),
            map_entries: build.gauge("ballast_bpf_map_entries"),
            map_capacity: build.gauge("ballast_bpf_map_capacity"),
            ring_high_water: build.float_gauge("ballast_bpf_ring_high_water_ratio"),
        }
    }
}

pub(super) struct StateFamilies {
    pub(super) saves: IntCounterVec,
    pub(super) save_duration: HistogramVec,
    pub(super) restores: IntCounterVec,
    pub(super) kubelet_config_fields: IntGaugeVec,
    pub(super) record_bytes: IntCounterVec,
    pub(super) record_dropped: IntCounterVec,
    pub(super) record_oldest: GaugeVec,
}

impl StateFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            saves: build.counter("ballast_state_saves_total"),
            save_duration: build.histogram("ballast_state_save_duration_seconds"),
            restores: build.counter("ballast_state_restores_total"),
            kubelet_config_fields: build.gauge("ballast_kubelet_config_fields"),
            record_bytes: build.counter("ballast_record_bytes_total"),
            record_dropped: build.counter("ballast_record_dropped_total"),
            record_oldest: build.float_gauge("ballast_record_oldest_timestamp_seconds"),
        }
    }
}

pub(super) struct ApiFamilies {
    pub(super) requests: IntCounterVec,
    pub(super) duration: HistogramVec,
    pub(super) last_success: GaugeVec,
    pub(super) events: IntCounterVec,
}

impl ApiFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            requests: build.counter("ballast_api_requests_total"),
            duration: build.histogram("ballast_api_request_duration_seconds"),
            last_success: build.float_gauge("ballast_api_last_success_timestamp_seconds"),
            events: build.counter("ballast_api_events_total"),
        }
    }
}

pub(super) struct DeviceFamilies {
    pub(super) allocated: IntGaugeVec,
    pub(super) unhealthy: IntGaugeVec,
    pub(super) refusals: IntCounterVec,
    pub(super) registrations: IntCounterVec,
    pub(super) alloc_duration: HistogramVec,
}

impl DeviceFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            allocated: build.gauge("ballast_device_allocated"),
            unhealthy: build.gauge("ballast_device_unhealthy"),
            refusals: build.counter("ballast_device_plugin_refusals_total"),
            registrations: build.counter("kubelet_device_plugin_registration_total"),
            alloc_duration: build.histogram("kubelet_device_plugin_alloc_duration_seconds"),
        }
    }
}

pub(super) struct PodResourcesFamilies {
    pub(super) requests: IntCounterVec,
    pub(super) list: IntCounterVec,
    pub(super) get: IntCounterVec,
    pub(super) get_allocatable: IntCounterVec,
    pub(super) list_errors: IntCounterVec,
    pub(super) get_errors: IntCounterVec,
    pub(super) get_allocatable_errors: IntCounterVec,
}

impl PodResourcesFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        let mut counter =
            |rest: &str| build.counter(&format!("kubelet_pod_resources_endpoint_{rest}"));
        Self {
            requests: counter("requests_total"),
            list: counter("requests_list"),
            get: counter("requests_get"),
            get_allocatable: counter("requests_get_allocatable"),
            list_errors: counter("errors_list"),
            get_errors: counter("errors_get"),
            get_allocatable_errors: counter("errors_get_allocatable"),
        }
    }
}

pub(super) struct CpuFamilies {
    pub(super) stall: CounterVec,
    pub(super) burst_limit: GaugeVec,
    pub(super) idle: GaugeVec,
}

impl CpuFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            stall: build.seconds_counter("ballast_cpu_stall_seconds_total"),
            burst_limit: build.float_gauge("ballast_cpu_burst_limit_seconds"),
            idle: build.float_gauge("ballast_node_cpu_idle_ratio"),
        }
    }
}

/// What kubelet has of its duties that no family of ours says in the same way. Of two names for the
/// same figures the old one is first.
pub(super) struct KubeletFamilies {
    pub(super) node_name: IntGaugeVec,
    pub(super) running_pods: IntGaugeVec,
    pub(super) running_containers: IntGaugeVec,
    pub(super) started_pods: IntCounterVec,
    pub(super) started_containers: IntCounterVec,
    pub(super) start_errors: IntCounterVec,
    pub(super) rejections: IntCounterVec,
    pub(super) cgroup_version: IntGaugeVec,
    pub(super) cgroup_duration: HistogramVec,
    pub(super) cpu_requests: IntCounterVec,
    pub(super) cpu_errors: IntCounterVec,
    pub(super) shared_pool: IntGaugeVec,
    pub(super) exclusive_cpus: [IntGaugeVec; 2],
    pub(super) cpus_per_numa: IntGaugeVec,
    pub(super) memory_requests: IntCounterVec,
    pub(super) memory_errors: IntCounterVec,
    pub(super) admissions: IntCounterVec,
    pub(super) admission_errors: IntCounterVec,
    pub(super) admission_ms: HistogramVec,
    pub(super) admission_seconds: HistogramVec,
    pub(super) aligned: [IntCounterVec; 2],
    pub(super) not_aligned: [IntCounterVec; 2],
    pub(super) memory_min: IntGaugeVec,
    pub(super) memory_low: IntGaugeVec,
}

impl KubeletFamilies {
    pub(super) fn new(build: &mut Builder) -> Self {
        Self {
            node_name: build.gauge("kubelet_node_name"),
            running_pods: build.gauge("kubelet_running_pods"),
            running_containers: build.gauge("kubelet_running_containers"),
            started_pods: build.counter("kubelet_started_pods_total"),
            started_containers: build.counter("kubelet_started_containers_total"),
            start_errors: build.counter("kubelet_started_containers_errors_total"),
            rejections: build.counter("kubelet_admission_rejections_total"),
            cgroup_version: build.gauge("kubelet_cgroup_version"),
            cgroup_duration: build.histogram("kubelet_cgroup_manager_duration_seconds"),
            cpu_requests: build.counter("kubelet_cpu_manager_pinning_requests_total"),
            cpu_errors: build.counter("kubelet_cpu_manager_pinning_errors_total"),
            shared_pool: build.gauge("kubelet_cpu_manager_shared_pool_size_millicores"),
            exclusive_cpus: [
                "kubelet_cpu_manager_exclusive_cpu_allocation_count",
                "kubelet_cpu_manager_exclusive_cpu_allocated",
            ]
            .map(|name| build.gauge(name)),
            cpus_per_numa: build.gauge("kubelet_cpu_manager_allocation_per_numa"),
            memory_requests: build.counter("kubelet_memory_manager_pinning_requests_total"),
            memory_errors: build.counter("kubelet_memory_manager_pinning_errors_total"),
            admissions: build.counter("kubelet_topology_manager_admission_requests_total"),
            admission_errors: build.counter("kubelet_topology_manager_admission_errors_total"),
            admission_ms: build.histogram("kubelet_topology_manager_admission_duration_ms"),
            admission_seconds: build
                .histogram("kubelet_topology_manager_admission_duration_seconds"),
            aligned: [
                "kubelet_container_aligned_compute_resources_count",
                "kubelet_container_aligned_compute_resources_total",
            ]
            .map(|name| build.counter(name)),
            not_aligned: [
                "kubelet_container_aligned_compute_resources_failure_count",
                "kubelet_container_aligned_compute_resources_failure_total",
            ]
            .map(|name| build.counter(name)),
            memory_min: build.gauge("kubelet_memory_qos_node_memory_min_bytes"),
            memory_low: build.gauge("kubelet_memory_qos_node_memory_low_bytes"),
        }
    }
}
