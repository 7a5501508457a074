//! Messages on the wire, by API. Field numbers are those of the Kubernetes APIs
//! (staging/src/k8s.io/kubelet/pkg/apis and staging/src/k8s.io/cri-api, v1.36); fields that nobody
//! here reads or sends are left out, and skipped when they come.

pub mod cri;
pub mod device_plugin;
pub mod plugin_registration;
pub mod pod_resources;
