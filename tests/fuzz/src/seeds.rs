//! What fuzzing starts from: good inputs, recorded from the real kubelet or as real plugins send
//! them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result, bail};
use ballast::grpc::messages::device_plugin::{
    AllocateResponse, CdiDevice, ContainerAllocateResponse, Device, DeviceIds, DeviceList,
    DeviceSpec, Mount, NumaNode, Options, PreferredAllocationResponse, RegisterRequest, Topology,
    VERSION,
};
use ballast::grpc::messages::plugin_registration::PluginInfo;
use flate2::read::MultiGzDecoder;
use prost::Message;
use serde_json::Value;

use crate::manager_state::Form;
use crate::plugin_messages::Kind;

/// Of one kind of file. They are alike: more would cost time at the start and bring nothing.
const MAX_RECORDED: usize = 48;

/// The seeds of a target, in the same order each time.
pub fn of(target: &str) -> Result<Vec<Vec<u8>>> {
    match target {
        "cpuset" => Ok(cpusets()),
        "manager-state" => manager_states(),
        "device-state" => device_states(),
        "plugin-messages" => Ok(plugin_messages()),
        "recording" => recordings(),
        "kube-cgroup" => kube_cgroups(),
        other => bail!("no target {other}"),
    }
}

fn cpusets() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "0",
        "0-3",
        "0-3,8-11",
        "0,2,4\n1,3,5",
        "0-63\n64-127",
        "7,5-6,0-4",
        "65535",
        "3-1",
        "0-4294967295",
    ];
    texts.map(|it| it.as_bytes().to_vec()).into()
}

fn manager_states() -> Result<Vec<Vec<u8>>> {
    let mut seeds = Vec::new();
    for (form, kind) in [
        (Form::CpuText, "cpu_read"),
        (Form::MemoryText, "memory_read"),
    ] {
        let texts = recorded(kind)?;
        // Every combination of settings at least once.
        seeds.extend(texts.iter().zip((0..=255).cycle()).map(|(text, choice)| {
            let head = [index(&Form::ALL, &form), choice];
            [&head, text.as_bytes()].concat()
        }));
    }
    let made = index(&Form::ALL, &Form::Made);
    seeds.extend((0..8).map(|i| choices(made, i)));
    Ok(seeds)
}

fn device_states() -> Result<Vec<Vec<u8>>> {
    let texts = recorded("device_read")?;
    let mut seeds: Vec<_> = texts
        .iter()
        .zip((0..=255).cycle())
        .map(|(text, choice)| [&[0, choice], text.as_bytes()].concat())
        .collect();
    seeds.extend((0..8).map(|i| choices(1, i)));
    Ok(seeds)
}

/// Stories as they were recorded, as files; the other form is left to the fuzzer.
fn recordings() -> Result<Vec<Vec<u8>>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/stories");
    let mut seeds = Vec::new();
    for name in ["leak", "fork-bomb", "slow-disk-fill"] {
        let path = directory.join(format!("{name}.story"));
        let file = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        seeds.push([&[0], file.as_slice()].concat());
    }
    seeds.extend((0..8).map(|i| choices(1, i)));
    Ok(seeds)
}

/// Every recorded path, below its root.
fn kube_cgroups() -> Result<Vec<Vec<u8>>> {
    let field = |input: &Value, name: &str| input[name].as_str().unwrap_or("/").to_owned();
    let inputs = inputs("kube_cgroup_paths")?.into_iter();
    let seeds = inputs.map(|it| format!("{}\n{}", field(&it, "root"), field(&it, "path")));
    Ok(seeds.map(String::into_bytes).collect())
}

/// A form, and bytes that look random to choose by.
pub(crate) fn choices(form: u8, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    std::iter::once(form)
        .chain((0..256).map(|_| next()))
        .collect()
}

fn index<T: PartialEq>(all: &[T], wanted: &T) -> u8 {
    let index = all.iter().position(|it| it == wanted);
    index.and_then(|it| u8::try_from(it).ok()).unwrap_or(0)
}

/// Texts of state files among the recorded cases.
fn recorded(kind: &str) -> Result<Vec<String>> {
    let inputs = inputs("checkpoints")?.into_iter();
    let texts = inputs.filter(|it| it["kind"] == kind);
    let texts = texts.filter_map(|it| it["file"].as_str().map(str::to_owned));
    Ok(texts.take(MAX_RECORDED).collect())
}

/// The inputs of a suite's recorded cases.
fn inputs(suite: &str) -> Result<Vec<Value>> {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/vectors");
    let path = vectors.join(format!("{suite}.jsonl.gz"));
    let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let lines = BufReader::new(MultiGzDecoder::new(file)).lines();
    lines
        .map(|line| {
            let line = line.with_context(|| format!("read {}", path.display()))?;
            let mut case: Value = serde_json::from_str(&line)
                .with_context(|| format!("{}: a line that is no case", path.display()))?;
            Ok(case["input"].take())
        })
        .collect()
}

fn plugin_messages() -> Vec<Vec<u8>> {
    let message = |kind: Kind, bytes: Vec<u8>| [vec![index(&Kind::ALL, &kind)], bytes].concat();
    let register = RegisterRequest {
        version: VERSION.to_owned(),
        endpoint: "gpu.sock".to_owned(),
        resource_name: "example.org/gpu".to_owned(),
    };
    let device = |id: &str, health: &str, nodes: &[i64]| Device {
        id: id.to_owned(),
        health: health.to_owned(),
        topology: Some(Topology {
            nodes: nodes.iter().map(|&id| NumaNode { id }).collect(),
        }),
    };
    let list = DeviceList {
        devices: vec![
            device("gpu-0", "Healthy", &[0]),
            device("gpu-1", "Unhealthy", &[1]),
            device("gpu-2", "Healthy", &[-1]),
        ],
        n_left_out: 0,
    };
    let pair = |a: &str, b: &str| [(a.to_owned(), b.to_owned())].into();
    let part = ContainerAllocateResponse {
        envs: pair("VISIBLE_DEVICES", "0,1"),
        mounts: vec![Mount {
            container_path: "/usr/lib/driver".to_owned(),
            host_path: "/opt/driver".to_owned(),
            read_only: true,
        }],
        devices: vec![DeviceSpec {
            container_path: "/dev/gpu0".to_owned(),
            host_path: "/dev/gpu0".to_owned(),
            permissions: "rw".to_owned(),
        }],
        annotations: pair("example.org/gpu", "0"),
        cdi_devices: vec![CdiDevice {
            name: "example.org/gpu=0".to_owned(),
        }],
    };
    let allocate = AllocateResponse {
        containers: vec![part.encode_to_vec(), Vec::new()],
    };
    let preferred = PreferredAllocationResponse {
        containers: vec![DeviceIds {
            ids: vec!["gpu-0".to_owned(), "gpu-2".to_owned()],
        }],
    };
    let options = Options {
        pre_start_required: true,
        get_preferred_allocation_available: true,
    };
    let info = PluginInfo {
        plugin_type: "DevicePlugin".to_owned(),
        name: "example.org/gpu".to_owned(),
        endpoint: String::new(),
        supported_versions: vec![VERSION.to_owned()],
    };
    vec![
        message(Kind::Register, register.encode_to_vec()),
        message(Kind::DeviceList, list.encode_to_vec()),
        message(Kind::Allocate, allocate.encode_to_vec()),
        message(Kind::Preferred, preferred.encode_to_vec()),
        message(Kind::Options, options.encode_to_vec()),
        message(Kind::Info, info.encode_to_vec()),
    ]
}
