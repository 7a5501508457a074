//! Where a kubelet serves what it is asked, and where the certificate may be by which it is known there (kubelet 1.36,
//! cmd/kubelet/app/server.go, `InitializeTLS`; client-go, util/certificate/certificate_store.go, `Current`).

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::kubelet_flags::{DEFAULT_CERTIFICATE_DIRECTORY, KubeletFlags};

/// The port of a kubelet that is not told another one (pkg/cluster/ports/ports.go).
const DEFAULT_PORT: u16 = 10250;

/// Those that it makes itself or is given by the cluster (`serverTLSBootstrap`), in its directory of certificates.
const CERTIFICATES: [&str; 3] = [
    "kubelet-server-current.pem",
    "kubelet-server.crt",
    "kubelet.crt",
];

/// See the module. Paths are as kubelet has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// `None`: all of its node.
    pub address: Option<IpAddr>,
    pub port: u16,
    /// In PEM, with its key or without; most of them are not there. Empty: not known. Which of them it serves by depends
    /// on what the cluster has given it so far.
    pub certificate_files: Vec<PathBuf>,
}

impl Default for Serving {
    /// Of a kubelet that does not tell.
    fn default() -> Self {
        Self {
            address: None,
            port: DEFAULT_PORT,
            certificate_files: Vec::new(),
        }
    }
}

impl Serving {
    /// `fields`: those of KubeletConfiguration. What is not understood is taken as not set: a kubelet that runs has
    /// understood it.
    pub(super) fn new(fields: &Map<String, Value>, flags: &KubeletFlags) -> Self {
        let text = |name: &str| fields.get(name)?.as_str().filter(|it| !it.is_empty());
        let address = text("address").and_then(|it| it.parse::<IpAddr>().ok());
        let port = fields.get("port").and_then(Value::as_u64);
        let port = port.and_then(|it| u16::try_from(it).ok());
        let directory = flags.certificate_directory.as_deref();
        let directory = directory.unwrap_or(Path::new(DEFAULT_CERTIFICATE_DIRECTORY));
        let mut files: Vec<PathBuf> = CERTIFICATES.map(|it| directory.join(it)).to_vec();
        if let Some(file) = text("tlsCertFile") {
            files.push(PathBuf::from(file));
            // A relative path in the file is relative to it, one of the command line is not.
            let beside = flags.config_file.as_ref().and_then(|it| it.parent());
            let beside = beside.map(|it| it.join(file));
            files.extend(beside.filter(|it| *it != Path::new(file)));
        }
        Self {
            address: address.filter(|it| !it.is_unspecified()),
            port: port.filter(|it| *it != 0).unwrap_or(DEFAULT_PORT),
            certificate_files: files,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Address, port, and files besides those that there always may be.
    #[track_caller]
    fn check(line: &str, fields: Value, address: &str, port: u16, files: &[&str]) {
        let Value::Object(fields) = fields else {
            panic!("no fields: {fields}");
        };
        let flags = KubeletFlags::parse(line.split_whitespace());
        let serving = Serving::new(&fields, &flags);
        let shown = serving.address.map(|it| it.to_string()).unwrap_or_default();
        assert_eq!((shown.as_str(), serving.port), (address, port));
        let mut found: Vec<String> = serving
            .certificate_files
            .iter()
            .map(|it| it.display().to_string())
            .collect();
        let more = found.split_off(3);
        assert_eq!(more, files);
        let pki = flags.certificate_directory.as_deref();
        let pki = pki.unwrap_or(Path::new("/var/lib/kubelet/pki"));
        let own = |name: &str| pki.join(name).display().to_string();
        let right = [
            "kubelet-server-current.pem",
            "kubelet-server.crt",
            "kubelet.crt",
        ]
        .map(own);
        assert_eq!(found, right);
    }

    #[test]
    fn a_kubelet_serves_where_and_as_its_settings_say() {
        check("", json!({}), "", 10250, &[]);
        let none = json!({"address": "0.0.0.0", "port": 0, "tlsCertFile": ""});
        check("--cert-dir=/k/pki", none, "", 10250, &[]);
        let all = json!({"address": "10.0.0.7", "port": 10260, "tlsCertFile": "/etc/k.crt"});
        check(
            "--config=/c/k.yaml",
            all,
            "10.0.0.7",
            10260,
            &["/etc/k.crt"],
        );
        let relative = json!({"address": "::", "tlsCertFile": "k.crt"});
        check(
            "--config=/c/k.yaml",
            relative,
            "",
            10250,
            &["k.crt", "/c/k.crt"],
        );
        let strange = json!({"address": "node1", "port": 70000, "tlsCertFile": 1});
        check("", strange, "", 10250, &[]);
    }
}
