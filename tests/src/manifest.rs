//! Manifests of pods for the host lane.

use std::fmt;

use serde_json::{Value, json};

/// A pod in the making; its text is JSON, which is YAML too.
#[derive(Clone, Debug)]
pub struct Manifest(Value);

impl Manifest {
    /// A pod without containers that is not restarted, has a second to stop, and has one volume,
    /// `shared`.
    pub fn new(name: &str) -> Self {
        Self(json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "volumes": [{"name": "shared", "emptyDir": {}}],
                "initContainers": [],
                "containers": [],
            },
        }))
    }

    /// Room between the limit of the pod and those of its containers together: without it the two
    /// are equal for a pod of one container, and on v2 it is the pod's that is reached first, since
    /// more is charged to it.
    #[must_use]
    pub fn with_overhead(self, mib: u64) -> Self {
        self.with("overhead", json!({"memory": format!("{mib}Mi")}))
    }

    /// Another namespace than `default`.
    #[must_use]
    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.0["metadata"]["namespace"] = namespace.into();
        self
    }

    /// A UID of its own, as static pods of some distributions have: an edit is the same pod.
    #[must_use]
    pub fn with_uid(mut self, uid: &str) -> Self {
        self.0["metadata"]["uid"] = uid.into();
        self
    }

    /// Sets a field of `spec`.
    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    #[must_use]
    pub fn container(self, container: Container) -> Self {
        self.push("containers", container)
    }

    #[must_use]
    pub fn init(self, container: Container) -> Self {
        self.push("initContainers", container)
    }

    fn push(mut self, list: &str, container: Container) -> Self {
        if let Some(list) = self.0["spec"][list].as_array_mut() {
            list.push(container.0);
        }
        self
    }

    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Name of the file for it.
    pub fn file(&self) -> String {
        format!("{}.yaml", self.name())
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A container in the making.
#[derive(Clone, Debug)]
pub struct Container(Value);

impl Container {
    pub fn new(name: &str, command: &[&str]) -> Self {
        Self(json!({"name": name, "image": "none", "command": command}))
    }

    /// A shell script.
    pub fn sh(name: &str, script: &str) -> Self {
        Self::new(name, &["/bin/sh", "-c", script])
    }

    /// Runs until it is told to stop.
    pub fn idle(name: &str) -> Self {
        Self::new(name, &["sleep", "3600"])
    }

    #[must_use]
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.0[field] = value;
        self
    }

    #[must_use]
    pub fn resources(self, requests: Value, limits: Value) -> Self {
        self.with("resources", json!({"requests": requests, "limits": limits}))
    }

    /// A memory limit in MiB, and nothing else.
    #[must_use]
    pub fn limited_to(self, mib: u64) -> Self {
        self.with(
            "resources",
            json!({"limits": {"memory": format!("{mib}Mi")}}),
        )
    }
}
