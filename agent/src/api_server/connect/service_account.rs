//! The API server of the cluster that the agent's own pod is of, asked by the pod's service account.

use std::net::IpAddr;
use std::path::PathBuf;

use hyper::Uri;

use super::tls::{Pem, Place};
use super::{Access, Identity};

/// Where kubelet puts what the pod needs to ask.
const AUTHORITY: &str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt";
pub const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Where kubelet says where the API server is.
const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// Without a proxy: the address is one of the cluster's own.
pub(super) fn access(variable: impl Fn(&str) -> Option<String>) -> Result<Access, String> {
    Ok(Access {
        server: server(variable)?,
        authority: Some(Pem {
            field: "ca.crt",
            place: Place::File(PathBuf::from(AUTHORITY)),
        }),
        is_insecure: false,
        server_name: None,
        proxy: None,
        hears_environment: false,
        certificate: None,
        identity: Identity::TokenFile {
            path: PathBuf::from(TOKEN),
            otherwise: None,
        },
        unsent: None,
        impersonated: Vec::new(),
        kubelet: None,
    })
}

fn server(variable: impl Fn(&str) -> Option<String>) -> Result<Uri, String> {
    let missing = |name: &str| {
        format!("{name}: is not in the environment; right would be that of a pod of the cluster")
    };
    let host = variable(HOST).ok_or_else(|| missing(HOST))?;
    let port = variable(PORT).ok_or_else(|| missing(PORT))?;
    let port = port.parse::<u16>();
    let port =
        port.map_err(|_not_shown| format!("{PORT}: is no port; right would be 1..=65535"))?;
    let url = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => format!("https://[{address}]:{port}"),
        _ => format!("https://{host}:{port}"),
    };
    let url = url.parse::<Uri>();
    url.map_err(|_not_shown| format!("{HOST}: is no address: {host}"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    fn asked(host: Option<&str>, port: Option<&str>) -> Result<String, String> {
        let found = server(|name| {
            let value = if name == HOST { host } else { port };
            value.map(str::to_owned)
        });
        found.map(|it| it.to_string())
    }

    #[test]
    fn the_environment_says_where_the_api_server_is() {
        for (host, right) in [
            ("10.96.0.1", "https://10.96.0.1:443/"),
            ("fd00::1", "https://[fd00::1]:443/"),
            ("kubernetes.default", "https://kubernetes.default:443/"),
        ] {
            assert_eq!(asked(Some(host), Some("443")).unwrap(), right);
        }
        for (host, port, right) in [
            (None, Some("443"), "KUBERNETES_SERVICE_HOST: is not in"),
            (Some("h"), None, "KUBERNETES_SERVICE_PORT: is not in"),
            (Some("h"), Some("x"), "KUBERNETES_SERVICE_PORT: is no port"),
            (
                Some("a b"),
                Some("1"),
                "KUBERNETES_SERVICE_HOST: is no address: a b",
            ),
        ] {
            let why = asked(host, port).unwrap_err();
            assert!(why.starts_with(right), "{why}");
        }
    }
}
