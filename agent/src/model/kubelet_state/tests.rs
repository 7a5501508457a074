use super::cpu::{ContainerIds, CpuFile};
use super::device::{DeviceEntry, DeviceFile};
use super::memory::MemoryFile;
use super::*;
use crate::model::numa::NumaMask;
use crate::model::placement::{
    CpuState, DeviceAllocation, DeviceState, MemoryBlock, MemoryState, MemoryTable, NumaMemory,
};
use crate::model::topology::NumaNodeId;

fn ranges(text: &str) -> CpuRanges {
    text.parse().expect("a set of CPUs")
}

/// `pod/container=cpus`, or `pod=cpus` of a pod as a whole.
fn cpu_file(policy: &str, shared_pool: &str, entries: &[&str]) -> CpuFile {
    let mut file = CpuFile {
        policy: policy.to_owned(),
        shared_pool: ranges(shared_pool),
        ..CpuFile::default()
    };
    for entry in entries {
        let (place, cpus) = entry.split_once('=').expect("place=cpus");
        match place.split_once('/') {
            Some((pod, container)) => {
                let sets = file.containers.entry(PodUid(pod.to_owned())).or_default();
                sets.insert(container.to_owned(), ranges(cpus));
            }
            None => {
                file.pods.insert(PodUid(place.to_owned()), ranges(cpus));
            }
        }
    }
    file
}

/// Those of policy `none` with CPUs: pkg/kubelet/cm/cpumanager/state/state_checkpoint_test.go, v1.36.
#[test]
fn checksums_of_cpus_are_kubelets() {
    let app = "c0c5c4b3-3f63-4677-ba68-52da74012371/app=1-13";
    let two = ["pod/container1=4-6", "pod/container2=1-3"];
    let with_pod = ["pod/container1=4-6", "pod/container2=1-3", "pod=4-6"];
    for (file, pod_entries, checksum) in [
        (cpu_file("none", "", &[]), PodEntries::No, 1_353_318_690_u32),
        (cpu_file("none", "4-6", &[]), PodEntries::No, 354_655_845),
        (cpu_file("none", "1-3", &two), PodEntries::No, 3_610_638_499),
        (
            cpu_file("none", "1-3", &with_pod),
            PodEntries::Yes,
            2_649_431_787,
        ),
        (cpu_file("static", "0-27", &[]), PodEntries::No, 273_146_150),
        (
            cpu_file("static", "0,14-27", &[app]),
            PodEntries::No,
            1_954_249_489,
        ),
        (cpu_file("static", "0-7", &[]), PodEntries::No, 14_413_152),
        (
            cpu_file("static", "0-7", &[]),
            PodEntries::Yes,
            4_072_108_790,
        ),
    ] {
        let text = file.to_text(pod_entries);
        assert!(
            text.ends_with(&format!("\"checksum\":{checksum}}}")),
            "{text}"
        );
        let ids = ContainerIds::new();
        let read = CpuFile::read(text.as_bytes(), &file.policy, pod_entries, &ids);
        assert_eq!(read.expect("what was written"), file);
    }
}

#[test]
fn the_oldest_format_is_read_through_container_ids() {
    let text = r#"{"policyName":"none","defaultCPUSet":"1-3","entries":{"containerID1":"4-6","containerID2":"1-3"},"checksum":3680390589}"#;
    let id = |id: &str, name: &str| (id.to_owned(), (PodUid("pod".to_owned()), name.to_owned()));
    let read = |ids: ContainerIds| CpuFile::read(text.as_bytes(), "none", PodEntries::No, &ids);
    let both = [id("containerID1", "a"), id("containerID2", "b")].into();
    assert_eq!(
        read(both).expect("both are known"),
        cpu_file("none", "1-3", &["pod/a=4-6", "pod/b=1-3"])
    );
    assert!(matches!(
        read([id("containerID1", "a")].into()),
        Err(StateFileError::UnknownContainer(id)) if id == "containerID2"
    ));
}

/// An older kubelet, and one with the gate off, refuses the newer format. In the other direction
/// all is read.
#[test]
fn version_3_needs_the_gate_and_version_2_does_not_mind_it() {
    let ids = ContainerIds::new();
    let file = cpu_file("static", "0-3", &["pod=4-7"]);
    let v3 = file.to_text(PodEntries::Yes);
    let read = CpuFile::read(v3.as_bytes(), "static", PodEntries::No, &ids);
    assert!(matches!(read, Err(StateFileError::Corrupt)));
    let v2 = file.to_text(PodEntries::No);
    let read = CpuFile::read(v2.as_bytes(), "static", PodEntries::Yes, &ids);
    assert_eq!(read.expect("version 2"), cpu_file("static", "0-3", &[]));
}

#[test]
fn a_cpu_that_no_machine_has_is_an_error_of_the_state_only() {
    let file = cpu_file("static", "99999999", &[]);
    let text = file.to_text(PodEntries::No);
    let read = CpuFile::read(
        text.as_bytes(),
        "static",
        PodEntries::No,
        &ContainerIds::new(),
    );
    assert_eq!(read.expect("kubelet takes it"), file);
    assert_eq!(
        CpuState::try_from(&file),
        Err(CpuSetError::TooLarge { cpu: 99_999_999 })
    );
}

#[test]
fn sets_are_read_as_kubelet_reads_them() {
    for (text, shown) in [
        ("0-5,34,46-48", "0-5,34,46-48"),
        ("3,1,2,2", "1-3"),
        ("1-1", "1"),
        ("", ""),
        ("4,5", "4-5"),
        ("007,+8", "7-8"),
        ("0-9223372036854775807", "0-9223372036854775807"),
    ] {
        assert_eq!(ranges(text).to_string(), shown, "{text}");
    }
    for text in [
        "5-2",
        "1.3",
        "1, 2",
        "1,,2",
        "0-3:2",
        "-1",
        "1-",
        "9223372036854775808",
        "a",
    ] {
        assert!(text.parse::<CpuRanges>().is_err(), "{text}");
    }
}

fn memory_state() -> MemoryState {
    let table = MemoryTable {
        total: 2048,
        system_reserved: 512,
        allocatable: 1536,
        reserved: 512,
        free: 1024,
    };
    let node = NumaMemory {
        n_assignments: 0,
        tables: [("memory".to_owned(), table)].into(),
        group: vec![],
    };
    let blocks = vec![MemoryBlock {
        numa: NumaMask::from_bits(1),
        resource: "memory".to_owned(),
        size: 512,
    }];
    let pod = PodUid("pod".to_owned());
    MemoryState {
        nodes: [(NumaNodeId(0), node)].into(),
        containers: [(
            pod.clone(),
            [("container1".to_owned(), blocks.clone())].into(),
        )]
        .into(),
        pods: [(pod, blocks)].into(),
    }
}

/// Those of policy `static`: pkg/kubelet/cm/memorymanager/state/state_checkpoint_test.go, v1.36.
#[test]
fn checksums_of_memory_are_kubelets() {
    let empty = MemoryState::default();
    let with_pod = memory_state();
    let without = MemoryState {
        pods: Default::default(),
        ..memory_state()
    };
    for (policy, state, pod_entries, checksum) in [
        ("None", empty, PodEntries::No, 4_236_770_233_u32),
        ("static", without, PodEntries::No, 4_215_593_881),
        ("static", with_pod, PodEntries::Yes, 1_278_640_530),
    ] {
        let text = MemoryFile::new(policy, &state, pod_entries).to_text();
        assert!(
            text.ends_with(&format!("\"checksum\":{checksum}}}")),
            "{text}"
        );
        let read = MemoryFile::read(text.as_bytes(), policy, pod_entries).expect("as written");
        assert_eq!(MemoryState::try_from(&read).expect("in bounds"), state);
    }
}

#[test]
fn memory_out_of_bounds_is_an_error() {
    for (machine, fault) in [
        (r#""-1":{}"#, "-1 is no NUMA node"),
        (
            r#""0":{"cells":[5000000000]}"#,
            "5000000000 is no NUMA node",
        ),
        (
            r#""0":{"numberOfAssignments":-1}"#,
            "-1 is no number of assignments",
        ),
    ] {
        let text = format!(r#"{{"policyName":"Static","machineState":{{{machine}}}}}"#);
        let file = MemoryFile::read(text.as_bytes(), "Static", PodEntries::No).expect("kubelet's");
        let error = MemoryState::try_from(&file).expect_err(&text);
        assert_eq!(error.to_string(), fault);
    }
}

#[test]
fn checksums_of_devices_are_kubelets() {
    let entry = DeviceEntry {
        pod: "bf52b2cd-b611-4e79-86b1-280b283185c3".to_owned(),
        container: "check".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        ids: [(-1, vec!["tegra".to_owned()])].into(),
        response: b"\x0a\x1f\x0a\x16NVIDIA_VISIBLE_DEVICES\x12\x05tegra".to_vec(),
    };
    let full = DeviceFile {
        entries: Some(vec![entry]),
        registered: [("nvidia.com/gpu".to_owned(), vec!["tegra".to_owned()])].into(),
    };
    for (file, checksum) in [
        (DeviceFile::default(), 3_467_439_661_u32),
        (full, 3_660_592_824),
    ] {
        let text = file.to_text();
        assert!(
            text.ends_with(&format!("\"Checksum\":{checksum}}}")),
            "{text}"
        );
        assert_eq!(DeviceFile::read(text.as_bytes()).expect("as written"), file);
        let state = DeviceState::try_from(&file).expect("in bounds");
        assert_eq!(DeviceFile::from(&state), file);
    }
}

#[test]
fn a_device_of_two_nodes_is_in_both_sets() {
    let set = || ["d0".to_owned()].into();
    let held = DeviceAllocation {
        ids: [(Some(NumaNodeId(0)), set()), (Some(NumaNodeId(1)), set())].into(),
        response: Vec::new(),
    };
    let containers = [("c".to_owned(), [("a.b/c".to_owned(), held)].into())].into();
    let state = DeviceState {
        containers: [(PodUid("p".to_owned()), containers)].into(),
        ..DeviceState::default()
    };
    let file = DeviceFile::from(&state);
    assert_eq!(DeviceState::try_from(&file).expect("in bounds"), state);
}

#[test]
fn json_is_written_and_read_as_go_does() {
    let file = DeviceFile {
        entries: None,
        registered: [(
            "<&>\u{2028}\"\\\u{1}\n\u{8}é".to_owned(),
            vec!["d".to_owned()],
        )]
        .into(),
    };
    let text = file.to_text();
    let key = "\"\\u003c\\u0026\\u003e\\u2028\\\"\\\\\\u0001\\n\\bé\"";
    assert!(text.contains(key), "{text}");
    assert_eq!(DeviceFile::read(text.as_bytes()).expect("as written"), file);

    let renamed = text
        .replace("Data", "dATA")
        .replace("RegisteredDevices", "registereddevices")
        .replace("{\"d", "{\"other\":[{}],\"d");
    assert_eq!(
        DeviceFile::read(renamed.as_bytes()).expect("same to Go"),
        file
    );
}

/// Every file cut short or with a byte changed is an error or a state, never a panic.
#[test]
fn damaged_files_are_errors() {
    let state = memory_state();
    let memory = MemoryFile::new("Static", &state, PodEntries::Yes).to_text();
    let cpus = cpu_file("static", "0-3", &["p/c=4", "p=4-7"]).to_text(PodEntries::Yes);
    let entry = r#"{"PodUID":"u","DeviceIDs":{"-1":["x"]},"AllocResp":"AAAA"}"#;
    let devices = format!(r#"{{"Data":{{"PodDeviceEntries":[{entry}]}},"Checksum":1}}"#);
    let ids = ContainerIds::new();
    let read = |bytes: &[u8]| {
        for pod_entries in [PodEntries::No, PodEntries::Yes] {
            if let Ok(file) = CpuFile::read(bytes, "static", pod_entries, &ids) {
                let _ = CpuState::try_from(&file);
            }
            if let Ok(file) = MemoryFile::read(bytes, "Static", pod_entries) {
                let _ = MemoryState::try_from(&file);
            }
        }
        if let Ok(file) = DeviceFile::read(bytes) {
            let _ = DeviceState::try_from(&file);
        }
    };
    for text in [memory, cpus, devices] {
        for at in 0..text.len() {
            read(&text.as_bytes()[..at]);
            for byte in [b'"', b'{', b']', b'-', b'9', b'n', 0xff, 0] {
                let mut bytes = text.clone().into_bytes();
                bytes[at] = byte;
                read(&bytes);
            }
        }
    }
    read("[".repeat(1 << 20).as_bytes());
    let huge = r#"{"podEntries":{"p":{"cpuSet":"0-9223372036854775807"}},"checksum":1}"#;
    let error = CpuFile::read(huge.as_bytes(), "", PodEntries::Yes, &ids).expect_err("too large");
    assert!(matches!(error, StateFileError::Corrupt));
}
