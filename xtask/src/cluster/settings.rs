//! What the programs of the cluster are told: flags, kubeconfigs, configuration files.

use std::path::Path;

use serde_json::{Value, json};

use super::images;
use super::programs::Programs;

/// The network namespace, the node's cgroup root, and the directory below `/var/lib`.
pub(crate) const NAME: &str = "ballast-cluster";
pub(crate) const NODE: &str = "ballast-cluster";

/// Of the node, in its network namespace: the API server proxies to no loopback address.
pub(super) const ADDRESS: &str = "10.240.0.1";
const POD_NETWORK: &str = "10.241.0.0/24";
const SERVICE_NETWORK: &str = "10.242.0.0/24";
/// The first of the services, which is the API server's.
pub(super) const SERVICE_ADDRESS: &str = "10.242.0.1";

/// Who speaks to the API server, by which token and in which group. The tokens are no secret: nothing
/// outside of the network namespace reaches the address.
pub(super) const ADMIN: User = User {
    name: "admin",
    token: "ballast-cluster-admin",
    group: "system:masters",
};
pub(super) const KUBELET: User = User {
    name: "system:node:ballast-cluster",
    token: "ballast-cluster-node",
    group: "system:nodes",
};

/// The agent beside kubelet, with the rights that deploy/clusterrole-observe.yaml gives.
pub(super) const AGENT: User = User {
    name: "ballast",
    token: "ballast-cluster-agent",
    group: "ballast:agents",
};

/// The same where it asks kubelet for pods, with those of deploy/clusterrole-observe-kubelet.yaml.
pub(super) const AGENT_OF_KUBELET: User = User {
    name: "ballast-kubelet",
    token: "ballast-cluster-agent-kubelet",
    group: "ballast:agents",
};

pub(super) struct User {
    pub(super) name: &'static str,
    pub(super) token: &'static str,
    pub(super) group: &'static str,
}

/// A file with lines as the API server's `--token-auth-file` has them.
pub(super) fn tokens() -> String {
    [ADMIN, KUBELET, AGENT, AGENT_OF_KUBELET]
        .iter()
        .map(|it| format!("{},{},{},{}\n", it.token, it.name, it.name, it.group))
        .collect()
}

pub(super) fn kubeconfig(user: &User, certificates: &Path) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {
            "server": format!("https://{ADDRESS}:6443"),
            "certificate-authority": certificates.join("ca.crt"),
        }}],
        "users": [{"name": user.name, "user": {"token": user.token}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": user.name}}],
        "current-context": NAME,
    })
}

fn place(directory: &Path, name: &str) -> String {
    directory.join(name).display().to_string()
}

pub(super) fn etcd(directory: &Path) -> Vec<String> {
    let address = "http://127.0.0.1:2379";
    vec![
        format!("--data-dir={}", place(directory, "etcd")),
        format!("--listen-client-urls={address}"),
        format!("--advertise-client-urls={address}"),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--unsafe-no-fsync".to_owned(),
    ]
}

pub(super) fn api_server(directory: &Path) -> Vec<String> {
    let certificate = |name: &str| place(directory, &format!("certificates/{name}"));
    vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        format!("--bind-address={ADDRESS}"),
        format!("--advertise-address={ADDRESS}"),
        format!("--service-cluster-ip-range={SERVICE_NETWORK}"),
        format!("--tls-cert-file={}", certificate("apiserver.crt")),
        format!("--tls-private-key-file={}", certificate("apiserver.key")),
        format!("--client-ca-file={}", certificate("ca.crt")),
        format!(
            "--kubelet-client-certificate={}",
            certificate("apiserver-kubelet-client.crt")
        ),
        format!(
            "--kubelet-client-key={}",
            certificate("apiserver-kubelet-client.key")
        ),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        format!("--token-auth-file={}", place(directory, "tokens.csv")),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!(
            "--service-account-key-file={}",
            certificate("service-account.key")
        ),
        format!(
            "--service-account-signing-key-file={}",
            certificate("service-account.key")
        ),
        "--allow-privileged=true".to_owned(),
    ]
}

pub(super) fn controllers(directory: &Path) -> Vec<String> {
    let certificate = |name: &str| place(directory, &format!("certificates/{name}"));
    vec![
        kubeconfig_flag(directory),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials=false".to_owned(),
        format!("--root-ca-file={}", certificate("ca.crt")),
        format!(
            "--service-account-private-key-file={}",
            certificate("service-account.key")
        ),
    ]
}

pub(super) fn scheduler(directory: &Path) -> Vec<String> {
    vec![
        kubeconfig_flag(directory),
        "--leader-elect=false".to_owned(),
    ]
}

fn kubeconfig_flag(directory: &Path) -> String {
    format!("--kubeconfig={}", place(directory, "admin.kubeconfig"))
}

pub(super) fn kubelet(directory: &Path) -> Vec<String> {
    let place = |name: &str| place(directory, name);
    vec![
        format!("--config={}", place("kubelet.json")),
        // A test puts a file there.
        format!("--config-dir={}", place("kubelet.conf.d")),
        format!("--kubeconfig={}", place("kubelet.kubeconfig")),
        format!("--root-dir={}", place("kubelet")),
        format!("--cert-dir={}", place("kubelet-certificates")),
        format!("--hostname-override={NODE}"),
        format!("--node-ip={ADDRESS}"),
        // Without it the page of cAdvisor has no labels of containers. `main.go` takes it: kubelet 1.37 does not.
        format!("--containerd={}", place("containerd.sock")),
        "--v=2".to_owned(),
    ]
}

pub(super) fn kubelet_configuration(directory: &Path) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{NAME}"),
        "failSwapOn": false,
        // On cgroup v2 too a child is killed alone, which nothing but the agent tells.
        "singleProcessOOMKill": true,
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": format!("unix://{}", place(directory, "containerd.sock")),
        "staticPodPath": directory.join("manifests"),
        "podLogsDir": directory.join("pod-logs"),
        "volumePluginDir": directory.join("volume-plugins"),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": directory.join("certificates/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        // Nobody answers there, but without one each pod is warned about.
        "clusterDNS": ["10.242.0.10"],
        "resolvConf": "",
        // The disk is shared with whatever else the machine does.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "2s",
        // 110 of a test, beside those of the test before that are not gone yet.
        "maxPods": 160,
    })
}

/// containerd's own file, in its third version.
pub(super) fn containerd(directory: &Path, programs: &Programs) -> String {
    let place = |name: &str| place(directory, name);
    format!(
        r#"version = 3
root = "{root}"
state = "{state}"

[grpc]
address = "{socket}"

[ttrpc]
address = "{socket}.ttrpc"

[plugins."io.containerd.internal.v1.opt"]
path = "{opt}"

[plugins."io.containerd.nri.v1.nri"]
socket_path = "{nri}/nri.sock"
plugin_path = "{nri}/plugins"
plugin_config_path = "{nri}/conf.d"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{sandbox}"

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
netns_mounts_under_state_dir = true
# A sandbox's -998 cannot be written without CAP_SYS_RESOURCE, and runc fails then.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{networks}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"#,
        root = place("containerd/root"),
        state = place("containerd/state"),
        socket = place("containerd.sock"),
        opt = place("containerd/opt"),
        nri = place("nri"),
        sandbox = images::SANDBOX,
        cni = programs.debian("usr/lib/cni").display(),
        networks = place("networks"),
        runc = programs.runc().display(),
    )
}

/// A bridge in the node's network namespace, without a way out of it.
pub(super) fn pod_network() -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods0",
                "isGateway": true,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": POD_NETWORK}]],
                    "dataDir": format!("/var/lib/{NAME}/addresses"),
                },
            },
            {"type": "loopback"},
        ],
    })
}
