//! The fingerprint that tells whether a running container still has the definition of its pod.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use crate::model::container::SpecHash;
use crate::model::pod::Container;

/// Changing what goes in here restarts every container once; say so in the release notes.
const FORMAT: &str = "v1";

/// SHA-256, first 8 bytes, over what a process gets only when it starts: image, command,
/// arguments, environment, working directory, mounts.
///
/// Resources are left out: they change in place, or by a `resizePolicy` make an instance [outdated](SpecHash::outdated)
/// when the definition changes. A policy by itself restarts nothing. Kubelet hashes name and image alone, because the
/// API lets nothing else change; a manifest on disk can change anywhere.
pub fn spec_hash(container: &Container) -> SpecHash {
    let mut hasher = Sha256::new();
    let mut list = |items: &[&str]| {
        // Lengths keep ["ab"], ["a", "b"] and a shifted field apart.
        hasher.update(length(items.len()));
        for item in items {
            hasher.update(length(item.len()));
            hasher.update(item.as_bytes());
        }
    };
    list(&[FORMAT, &container.name, &container.image]);
    list(&strs(&container.command));
    list(&strs(&container.args));
    let env: Vec<&str> = container
        .env
        .iter()
        .flat_map(|it| {
            let value = match it.is_node_address {
                // No value has a NUL.
                true => "\0",
                false => it.value.as_str(),
            };
            [it.name.as_str(), value]
        })
        .collect();
    list(&env);
    list(
        &container
            .working_dir
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
    let mounts: Vec<&str> = container
        .volume_mounts
        .iter()
        .flat_map(|(name, path)| [name.as_str(), path.as_str()])
        .collect();
    list(&mounts);

    let digest = hasher.finalize();
    let mut text = String::with_capacity(16);
    for byte in digest.iter().take(8) {
        write!(text, "{byte:02x}").expect("writing to a String cannot fail");
    }
    SpecHash(text)
}

fn strs(items: &[String]) -> Vec<&str> {
    items.iter().map(String::as_str).collect()
}

fn length(n: usize) -> [u8; 8] {
    u64::try_from(n)
        .expect("usize is at most 64 bits on every supported target")
        .to_le_bytes()
}
