//! The answer of Allocate for one container, from a plugin or from a checkpoint.

use prost::Message;

use super::limits::MAX_RESPONSE_BYTES;
use crate::grpc::messages::device_plugin as wire;
use crate::model::device::{ContainerResponse, DeviceNode, Mount};

/// Why a response cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    #[error("there is no part for the container")]
    NoContainer,
    #[error("{n_bytes} bytes are more than {MAX_RESPONSE_BYTES}")]
    TooLarge { n_bytes: usize },
    #[error("it is not a v1beta1.ContainerAllocateResponse")]
    Decode(#[source] prost::DecodeError),
    #[error("`{0}` cannot be the name of an environment variable")]
    EnvName(String),
    #[error("the value of the environment variable {name} has a zero byte")]
    EnvValue { name: String },
    #[error("the permissions `{permissions}` of {path} are not of r, w and m")]
    Permissions { path: String, permissions: String },
}

/// Decodes v1beta1.ContainerAllocateResponse, as `Allocate` gives it and as the checkpoint keeps
/// it.
pub fn decode_response(bytes: &[u8]) -> Result<ContainerResponse, ResponseError> {
    if bytes.len() > MAX_RESPONSE_BYTES {
        return Err(ResponseError::TooLarge {
            n_bytes: bytes.len(),
        });
    }
    let message = wire::ContainerAllocateResponse::decode(bytes).map_err(ResponseError::Decode)?;
    for (name, value) in &message.envs {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(ResponseError::EnvName(name.clone()));
        }
        if value.contains('\0') {
            return Err(ResponseError::EnvValue { name: name.clone() });
        }
    }
    let devices = message.devices.into_iter().map(device);
    Ok(ContainerResponse {
        envs: message.envs,
        mounts: message.mounts.into_iter().map(mount).collect(),
        devices: devices.collect::<Result<_, _>>()?,
        annotations: message.annotations,
        cdi_devices: message.cdi_devices.into_iter().map(|it| it.name).collect(),
    })
}

fn mount(it: wire::Mount) -> Mount {
    Mount {
        container_path: it.container_path,
        host_path: it.host_path,
        is_read_only: it.read_only,
    }
}

fn device(it: wire::DeviceSpec) -> Result<DeviceNode, ResponseError> {
    if it.permissions.contains(|it| !"rwm".contains(it)) {
        return Err(ResponseError::Permissions {
            path: it.host_path,
            permissions: it.permissions,
        });
    }
    Ok(DeviceNode {
        container_path: it.container_path,
        host_path: it.host_path,
        permissions: it.permissions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(message: &wire::ContainerAllocateResponse) -> Vec<u8> {
        message.encode_to_vec()
    }

    #[test]
    fn a_response_of_a_real_checkpoint_is_read() {
        // A map entry with the fields 1 and 2.
        let bytes = b"\x0a\x1f\x0a\x16NVIDIA_VISIBLE_DEVICES\x12\x05tegra";
        let response = decode_response(bytes).expect("valid");
        let envs: Vec<_> = response.envs.into_iter().collect();
        assert_eq!(
            envs,
            [("NVIDIA_VISIBLE_DEVICES".to_owned(), "tegra".to_owned())]
        );
    }

    #[test]
    fn every_field_has_its_number_and_others_are_skipped() {
        let bytes = [
            b"\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01".as_slice(), // 2 mounts
            b"\x1a\x0c\x0a\x02/d\x12\x02/e\x1a\x02rw",          // 3 devices
            b"\x22\x06\x0a\x01k\x12\x01v",                      // 4 annotations
            b"\x2a\x07\x0a\x05v/c=1",                           // 5 CDI devices
            b"\x9a\x06\x01x",                                   // 99, of a newer version
        ]
        .concat();
        let response = decode_response(&bytes).expect("valid");
        let expected = ContainerResponse {
            mounts: vec![Mount {
                container_path: "/c".to_owned(),
                host_path: "/h".to_owned(),
                is_read_only: true,
            }],
            devices: vec![DeviceNode {
                container_path: "/d".to_owned(),
                host_path: "/e".to_owned(),
                permissions: "rw".to_owned(),
            }],
            annotations: [("k".to_owned(), "v".to_owned())].into(),
            cdi_devices: vec!["v/c=1".to_owned()],
            ..ContainerResponse::default()
        };
        assert_eq!(response, expected);
    }

    #[test]
    fn what_no_container_can_have_is_refused() {
        let env = |name: &str, value: &str| {
            encoded(&wire::ContainerAllocateResponse {
                envs: [(name.to_owned(), value.to_owned())].into(),
                ..Default::default()
            })
        };
        let permissions = encoded(&wire::ContainerAllocateResponse {
            devices: vec![wire::DeviceSpec {
                host_path: "/dev/x".to_owned(),
                permissions: "rx".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        });
        for (bytes, expected) in [
            (env("A=B", ""), "`A=B` cannot be"),
            (env("", "x"), "`` cannot be"),
            (env("A", "x\0"), "of the environment variable A"),
            (permissions, "`rx` of /dev/x"),
            (vec![0xff; 3], "is not a v1beta1"),
            (vec![0; MAX_RESPONSE_BYTES + 1], "more than"),
        ] {
            let error = decode_response(&bytes).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
        assert_eq!(decode_response(b""), Ok(ContainerResponse::default()));
    }
}
