//! Suite `cgroup_names`: components to paths and back, under both drivers.
//!
//! Kubelet's conversions take anything, so the suite is about the unchecked ones of
//! `cgroup_name::algebra`. Where they give a name that the agent would use, the checked
//! [`CgroupName`] must agree.

use anyhow::{Context, bail, ensure};
use ballast::model::cgroup_name::{CgroupDriver, CgroupName, algebra};
use serde_json::{Value, json};

use crate::resources::text;

pub(crate) fn run(input: &Value) -> anyhow::Result<Value> {
    match text(input, "kind")? {
        "components" => {
            let components = input["components"].as_array().context("components")?;
            let components: Vec<&str> = components.iter().filter_map(Value::as_str).collect();
            of_components(&components)
        }
        "path" => {
            let path = text(input, "path")?;
            Ok(json!({
                "from_cgroupfs": algebra::parse_cgroupfs(path),
                "from_systemd": algebra::parse_systemd(path),
                "systemd_style": algebra::is_systemd_style(path),
            }))
        }
        "node_allocatable_root" => {
            let mut components = algebra::parse_cgroupfs(text(input, "cgroup_root")?);
            if input["cgroups_per_qos"]
                .as_bool()
                .context("cgroups_per_qos")?
            {
                components.push("kubepods".to_owned());
            }
            let path = match text(input, "cgroup_driver")? {
                "systemd" => algebra::to_systemd(&components),
                _ => Ok(algebra::to_cgroupfs(&components)),
            };
            Ok(match path {
                Ok(path) => json!({"path": path}),
                Err(_) => json!({"error": "invalid-slice-name"}),
            })
        }
        other => bail!("unknown kind {other}"),
    }
}

fn of_components(components: &[&str]) -> anyhow::Result<Value> {
    let cgroupfs = algebra::to_cgroupfs(components);
    let mut shown = json!({
        "new": if components.iter().all(|it| algebra::is_component(it)) {
            json!(components)
        } else {
            json!({"error": "invalid-component"})
        },
        "cgroupfs_parsed": algebra::parse_cgroupfs(&cgroupfs),
    });
    match algebra::to_systemd(components) {
        Ok(systemd) => {
            shown["systemd_parsed"] = json!(algebra::parse_systemd(&systemd));
            shown["systemd"] = json!(systemd);
        }
        Err(_) => shown["systemd"] = json!({"error": "invalid-slice-name"}),
    }
    shown["cgroupfs"] = json!(cgroupfs);
    if let Ok(name) = CgroupName::new(components.iter().copied()) {
        for (driver, field) in [
            (CgroupDriver::Cgroupfs, "cgroupfs"),
            (CgroupDriver::Systemd, "systemd"),
        ] {
            let path = name.path(driver);
            ensure!(
                shown[field] == json!(path),
                "{name:?} is {path} and not {}",
                shown[field]
            );
            let again = CgroupName::parse(&path, driver)?;
            ensure!(
                again == name,
                "{path} reads back as {again:?}, not {name:?}"
            );
        }
    }
    Ok(shown)
}
