//! Services `v1beta1.DevicePlugin` and `pluginregistration.Registration`.

use std::collections::BTreeSet;
use std::fs;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, Result};
use ballast::grpc::messages::device_plugin::{
    self as wire, AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device, DeviceIds,
    DeviceList, Empty, HEALTHY, PreStartContainerRequest, PreferredAllocationRequest,
    PreferredAllocationResponse, VERSION, path,
};
use ballast::grpc::messages::plugin_registration::{self as registration, PluginInfo};
use ballast::grpc::server::{Handler, unary, unknown_method};
use hyper::body::Incoming;
use hyper::{Request, Response};
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, skip_field};
use prost::{DecodeError, Message};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::Status;
use tonic::body::Body;
use tonic::server::{Grpc, ServerStreamingService};
use tonic_prost::ProstCodec;

use crate::options::{Fault, Options, Preferred};

/// Of one request: the agent asks for all devices in one.
const MAX_REQUEST_BYTES: usize = 8 << 20;

pub(crate) struct Plugin {
    pub(crate) options: Options,
    unhealthy: watch::Sender<BTreeSet<String>>,
}

impl Plugin {
    pub(crate) fn new(options: Options) -> Result<Self> {
        if let Some(directory) = &options.files {
            fs::create_dir_all(directory).context("make the directory of devices")?;
            for i in 0..options.n_devices {
                let path = directory.join(id(i));
                if !path.exists() {
                    fs::write(&path, "").with_context(|| format!("make {}", path.display()))?;
                }
            }
        }
        Ok(Self {
            options,
            unhealthy: watch::Sender::new(BTreeSet::new()),
        })
    }

    pub(crate) fn set_unhealthy(&self, ids: &[&str]) {
        let ids = ids.iter().map(|it| (*it).to_owned()).collect();
        self.unhealthy.send_replace(ids);
    }

    pub(crate) fn handler(self: &Arc<Self>) -> Handler {
        let plugin = Arc::clone(self);
        Arc::new(move |request| {
            let plugin = Arc::clone(&plugin);
            Box::pin(async move { plugin.answer(request).await })
        })
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let max = MAX_REQUEST_BYTES;
        match request.uri().path() {
            path::OPTIONS => unary(request, max, async |_: Empty| Ok(self.api_options())).await,
            path::LIST_AND_WATCH => {
                Grpc::new(ProstCodec::<Raw, Empty>::default())
                    .server_streaming(Lists(self), request)
                    .await
            }
            path::PREFERRED_ALLOCATION => unary(request, max, |it| self.preferred(it)).await,
            path::ALLOCATE if self.options.fault == Some(Fault::GarbageAllocate) => {
                let garbage = async |_: AllocateRequest| Ok(Raw(b"\x0a\x02\xff\xff".to_vec()));
                unary(request, max, garbage).await
            }
            path::ALLOCATE => unary(request, max, |it| self.allocate(it)).await,
            path::PRE_START_CONTAINER => unary(request, max, |it| self.pre_start(it)).await,
            registration::path::GET_INFO => {
                let info = async |_: registration::Empty| {
                    Ok(PluginInfo {
                        plugin_type: registration::DEVICE_PLUGIN.to_owned(),
                        name: self.options.resource.clone(),
                        endpoint: String::new(),
                        supported_versions: vec![VERSION.to_owned()],
                    })
                };
                unary(request, max, info).await
            }
            registration::path::NOTIFY => {
                let told = async |status: registration::RegistrationStatus| {
                    match status.plugin_registered {
                        true => println!("registered"),
                        false => println!("refused: {}", status.error),
                    }
                    Ok(registration::Empty {})
                };
                unary(request, max, told).await
            }
            _ => unknown_method(),
        }
    }

    fn api_options(&self) -> wire::Options {
        wire::Options {
            pre_start_required: self.options.pre_start,
            get_preferred_allocation_available: self.options.preferred.is_some(),
        }
    }

    async fn preferred(
        &self,
        request: PreferredAllocationRequest,
    ) -> Result<PreferredAllocationResponse, Status> {
        println!("preferred");
        tokio::time::sleep(self.options.slow).await;
        let choose = |it: wire::ContainerPreferredAllocationRequest| {
            let size = usize::try_from(it.size).unwrap_or(0);
            let mut ids = it.must_include_ids;
            let mut rest = it.available_ids;
            rest.retain(|it| !ids.contains(it));
            if self.options.preferred == Some(Preferred::Last) {
                rest.reverse();
            }
            rest.truncate(size.saturating_sub(ids.len()));
            ids.extend(rest);
            DeviceIds { ids }
        };
        Ok(PreferredAllocationResponse {
            containers: request.containers.into_iter().map(choose).collect(),
        })
    }

    async fn allocate(&self, request: AllocateRequest) -> Result<AllocateResponse, Status> {
        let containers = request.containers.into_iter();
        tokio::time::sleep(self.options.slow).await;
        match self.options.fault {
            Some(Fault::Refuse) => return Err(Status::unknown("the devices are on strike")),
            Some(Fault::Nothing) => return Ok(AllocateResponse::default()),
            _ => {}
        }
        let allocate = |it: DeviceIds| {
            println!("allocate {}", it.ids.join(","));
            self.given(&it.ids).encode_to_vec()
        };
        Ok(AllocateResponse {
            containers: containers.map(allocate).collect(),
        })
    }

    /// What a container gets with these devices.
    fn given(&self, ids: &[String]) -> ContainerAllocateResponse {
        let device = |id: &String| wire::DeviceSpec {
            container_path: format!("/dev/{id}"),
            host_path: self.host_path(id).to_string_lossy().into_owned(),
            permissions: "rw".to_owned(),
        };
        let cdi_device = |id: &String| wire::CdiDevice {
            name: format!("{}={id}", self.options.resource),
        };
        ContainerAllocateResponse {
            envs: [("EXAMPLE_DEVICES".to_owned(), ids.join(","))].into(),
            mounts: vec![wire::Mount {
                container_path: "/etc/example".to_owned(),
                host_path: "/etc".to_owned(),
                read_only: true,
            }],
            devices: ids.iter().map(device).collect(),
            annotations: [("example.com/devices".to_owned(), ids.len().to_string())].into(),
            cdi_devices: ids.iter().map(cdi_device).collect(),
        }
    }

    fn host_path(&self, id: &str) -> PathBuf {
        match &self.options.files {
            Some(directory) => directory.join(id),
            None => "/dev/null".into(),
        }
    }

    async fn pre_start(&self, request: PreStartContainerRequest) -> Result<Empty, Status> {
        println!("pre-start {}", request.ids.join(","));
        tokio::time::sleep(self.options.slow).await;
        Ok(Empty {})
    }

    fn list(&self, unhealthy: &BTreeSet<String>) -> Raw {
        let device = |i: usize| {
            let numa_node = self.options.n_numa_nodes.map(|n| i % n);
            Device {
                id: id(i),
                health: match unhealthy.contains(&id(i)) {
                    true => "Unhealthy".to_owned(),
                    false => HEALTHY.to_owned(),
                },
                topology: numa_node.map(|it| wire::Topology {
                    nodes: vec![wire::NumaNode {
                        id: i64::try_from(it).unwrap_or(-1),
                    }],
                }),
            }
        };
        let mut devices: Vec<Device> = (0..self.options.n_devices).map(device).collect();
        match self.options.fault {
            Some(Fault::Garbage) => return Raw(vec![0xff; 100]),
            Some(Fault::Many) => return Raw(b"\x0a\0".repeat(DeviceList::MAX_DEVICES + 1)),
            Some(Fault::Large) => devices[0].id = "x".repeat(5 << 20),
            Some(Fault::Twice) => devices.extend_from_within(..),
            _ => {}
        }
        let list = DeviceList {
            devices,
            n_left_out: 0,
        };
        Raw(list.encode_to_vec())
    }
}

fn id(i: usize) -> String {
    format!("dev-{i}")
}

/// ListAndWatch.
struct Lists<'a>(&'a Plugin);

type RawStream = Pin<Box<dyn Stream<Item = Result<Raw, Status>> + Send>>;

impl ServerStreamingService<Empty> for Lists<'_> {
    type Response = Raw;
    type ResponseStream = RawStream;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<RawStream>, Status>> + Send>>;

    fn call(&mut self, _: tonic::Request<Empty>) -> Self::Future {
        let plugin = Plugin {
            options: self.0.options.clone(),
            unhealthy: self.0.unhealthy.clone(),
        };
        let stream: RawStream = match plugin.options.fault {
            Some(Fault::Silent) => Box::pin(tokio_stream::pending()),
            Some(Fault::Error) => {
                Box::pin(tokio_stream::once(Err(Status::unknown("no devices today"))))
            }
            _ => {
                let changes = WatchStream::new(plugin.unhealthy.subscribe());
                Box::pin(changes.map(move |it| Ok(plugin.list(&it))))
            }
        };
        Box::pin(async { Ok(tonic::Response::new(stream)) })
    }
}

/// A message that is encoded already, or none.
#[derive(Clone, Debug, Default, PartialEq)]
struct Raw(Vec<u8>);

impl Message for Raw {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        buffer.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(wire_type, tag, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}
