//! ballast: a node resource manager. See `agent/ARCHITECTURE.md` for the map; modules are listed
//! here in reading order.

pub mod units;

pub mod model;

pub mod sys;

pub mod config;

pub mod sources;

pub mod decide;

pub mod check;

pub mod api_server;
pub mod apply;

pub mod runtime;

mod listener;

mod places;

pub mod grpc;

pub mod device_plugin;

pub mod cri;

pub mod pod_resources;

pub mod observe;

pub mod cli;

pub mod run;
